"""Events are plain facts."""

import attrs

from triolet.runtime import events


def test_events_are_frozen_facts_and_may_be_ignored() -> None:
    event = events.ChildReady("engine 0", 1, 0.5)
    assert attrs.asdict(event) == {"child": "engine 0", "epoch": 1, "boot_s": 0.5}
    events.ignore_event(event)
