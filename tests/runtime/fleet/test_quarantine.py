"""Quarantine under drawn deaths; cases one by one are in `tests/scenarios/quarantine`."""

import attrs
from hypothesis import given
from hypothesis import strategies as st

from triolet.runtime.fleet.quarantine import EXPIRY_S, Quarantine

POSITIONS = st.dictionaries(
    st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(1, 9), max_size=4
)
EVENTS = st.lists(
    st.tuples(st.booleans(), POSITIONS, st.floats(0.0, EXPIRY_S / 2)),
    max_size=30,
)


@given(EVENTS)
def test_whatever_dies_and_passes(events: list[tuple[bool, dict[bytes, int], float]]) -> None:
    quarantine, now = Quarantine(), 0.0
    batches: dict[int, set[bytes]] = {}
    for life, (is_death, positions, passed_s) in enumerate(events):
        now += passed_s
        quarantine.handle_timeout(now)
        before = dict(quarantine.suspects)
        if not is_death:
            changed = quarantine.handle_passed(positions, now)
            quarantine.check_invariants()
            assert changed == (quarantine.suspects != before)
            for content, suspect in before.items():
                after = quarantine.suspects.get(content)
                is_past = 0 < suspect.position <= positions.get(content, 0)
                assert (after is None) == (is_past and not suspect.alone)
                cleared = attrs.evolve(suspect, position=0, company=()) if is_past else suspect
                assert after in (None, cleared)
            continue
        found = quarantine.handle_death(positions, now, life)
        refused = found.refused
        quarantine.check_invariants()
        batches[life] = set(positions)
        assert not refused or life in found.explained
        for each in found.explained:
            assert batches[each] & quarantine.refused.keys(), "it had one that is refused"
        assert set(refused) <= set(positions)
        assert set(positions) <= set(quarantine.refused) | set(quarantine.suspects)
        assert all(content in quarantine.refused for content in refused)
