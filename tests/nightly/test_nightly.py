"""The table of nightly campaigns, and that a campaign that fails is said to have."""

import pytest

from .__main__ import CAMPAIGNS, WHOLE_LIMIT_MINUTES, Campaign, main, run


def test_all_end_within_a_hundred_minutes() -> None:
    assert sum(each.limit_minutes for each in CAMPAIGNS) <= WHOLE_LIMIT_MINUTES
    assert len({each.name for each in CAMPAIGNS}) == len(CAMPAIGNS)


@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_code_decides(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    campaign = Campaign("test", 1, "platform" if code == 0 else "nonsense", "", "")
    assert run(campaign, is_short=True) == (code == 0)
    said = capsys.readouterr().out
    assert ("nonsense" in said) == (code != 0)


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nonsense"])
    assert "no campaign 'nonsense'" in capsys.readouterr().err
