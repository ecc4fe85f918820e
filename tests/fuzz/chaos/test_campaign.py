"""What must not be in a run's log. The campaign itself runs in `tests/chaos`."""

from triolet.fuzz.chaos.campaign import log_violations


def test_what_must_not_be_in_the_log() -> None:
    assert log_violations("engine 0: was killed by SIGKILL\nengine 0: ready") == []
    found = log_violations("engine 0: given up: it died too often\nTraceback (most recent")
    assert [violation.invariant for violation in found] == ["I10", "I10"]
