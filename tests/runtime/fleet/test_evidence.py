"""Evidence is judged where the quarantine is: here, or wherever a fleet is told to send it."""

from collections.abc import Set

import attrs

from triolet.engine.batch_table import table_bytes
from triolet.runtime.control.calls import EngineState
from triolet.runtime.events import RequestRefused
from triolet.runtime.fleet.engine_fleet import EngineFleet
from triolet.runtime.fleet.evidence import JudgedHere
from triolet.runtime.fleet.fleet_parts import FleetParts
from triolet.runtime.fleet.membership import EngineDirectory, FrontendDirectory
from triolet.runtime.fleet.quarantine import STRIKES_MAX, Quarantine
from triolet.runtime.launch.child import Suspected
from triolet.runtime.messages import EngineMember, EngineMembership

from ..acting import ACTING_ENGINE, ActingKernel, Diary, acting_settings, facts_of, running
from ..children.acting_engine import READY


async def test_a_death_on_another_machine_counts_like_one_here() -> None:
    directory, diary, explained = EngineDirectory(), Diary(), list[Set[int]]()
    evidence = JudgedHere(Quarantine(), directory, diary, diary, explained.append)
    directory.handle_starting(0, 1)
    state, remote = EngineState.READY, 4097
    member = EngineMember(rank=3, epoch=remote, state=state, latest=READY, host="b")
    directory.handle_host("b", [member], {})
    assert STRIKES_MAX == 2
    evidence.handle_death({b"x": 5}, 1)
    assert directory.snapshot().suspects == {b"x": 5}
    evidence.handle_death({b"x": 5}, remote)
    assert directory.snapshot().suspects == {}
    assert list(directory.snapshot().refused) == [b"x"]
    assert diary.told == [RequestRefused("engine 3", b"x".hex())], "membership comes with the end"
    assert explained == [set(), {1, remote}]


async def test_what_has_passed_is_listed_at_once_and_once() -> None:
    directory, diary = EngineDirectory(), Diary()
    evidence = JudgedHere(Quarantine(), directory, diary, diary, lambda lives: None)
    evidence.handle_death({b"x": 5, b"y": 6}, 1)
    for _ in range(2):
        evidence.handle_passed({b"x": 9})
    assert [membership.suspects for membership in diary.of(EngineMembership)] == [{b"y": 6}]


@attrs.define(eq=False)
class _Sent:
    """Evidence that is judged elsewhere."""

    told: list[object] = attrs.field(factory=list)

    def handle_death(self, positions: dict[bytes, int], epoch: int) -> None:
        self.told.append((positions, epoch))

    def handle_passed(self, positions: dict[bytes, int]) -> None:
        self.told.append(positions)


async def test_a_fleet_judges_nothing_whose_evidence_goes_elsewhere() -> None:
    settings, diary, sent = acting_settings(["passed x"]), Diary(), _Sent()
    fleet = EngineFleet(
        parts=FleetParts(settings, diary, run_id="r", kernel=ActingKernel()),
        frontends=FrontendDirectory(),
        on_membership=diary,
        module=ACTING_ENGINE,
        evidence=sent,
    )
    async with running(fleet):
        await fleet.ready_once.wait()
        await facts_of(fleet.processes.ready[0])  # what it said before has been heard
        assert sent.told == [{b"x": 7}]
        table = bytes(table_bytes(settings.engine.max_num_seqs))
        fleet.blame(0, Suspected(table, is_itself=False))
    assert sent.told[1:] == [({}, 1)]
    assert not fleet.quarantine.suspects
    assert not fleet.directory.snapshot().suspects
