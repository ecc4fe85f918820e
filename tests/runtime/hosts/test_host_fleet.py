"""A head and its hosts, over real sockets, with acting engines: joined, listed, ordered, lost."""

import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio
import trio.testing

from triolet.fuzz.observers import wait_until
from triolet.nurseries.tasks.service import open_service
from triolet.runtime.config import HostSettings
from triolet.runtime.control.calls import (
    ControlCall,
    ControlQuestion,
    EngineState,
    Place,
    PlaceState,
    Role,
    Signal,
    SignalOrder,
)
from triolet.runtime.errors import ControlCallRefused, JoinRefusedByHead
from triolet.runtime.events import (
    ChildReady,
    EngineDiffers,
    HostJoined,
    HostLost,
    HostSaid,
)
from triolet.runtime.fleet.engine_fleet import EngineFleet
from triolet.runtime.hosts.host_directory import EPOCHS_OF_BLOCK, HostDirectory
from triolet.runtime.hosts.host_fleet import HostFleet
from triolet.runtime.hosts.host_guests import HostGuests
from triolet.runtime.hosts.host_keys import ClusterKeys, make_cluster_keys
from triolet.runtime.hosts.host_messages import HOST_WIRE, LEASE_OVER, LeaseSettings, Leave
from triolet.runtime.hosts.host_plan import HostPlan, boottime_s
from triolet.runtime.hosts.host_process import Host
from triolet.runtime.messages import EngineMember, EngineMembership, HostReport, HostReports

from ...leaks import check_no_leaks
from ..acting import (
    ACTING_ENGINE,
    ActingKernel,
    Diary,
    acting_fleet,
    acting_settings,
    running_kernel,
)

DEADLINE_S = 20.0
# Suspicion is quick, as tests wait for it; the lease is slow enough for a busy machine.
LEASE = LeaseSettings(beat_s=0.05, suspect_s=0.4, suspect_max_s=0.5, lease_s=3.0, reopen_s=0.2)


@attrs.define(eq=False)
class Bed:
    """A head without engines of its own."""

    keys: ClusterKeys = attrs.field(factory=make_cluster_keys)
    diary: Diary = attrs.field(factory=Diary)
    kernel: ActingKernel = attrs.field(factory=ActingKernel)
    engines: EngineFleet = attrs.field(init=False)
    hosts: HostFleet = attrs.field(init=False)
    # Rows as viewers have them, by place.
    rows: dict[str, dict[str, Any]] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        settings = attrs.evolve(
            acting_settings(["ready"]), engines=0, hosts=HostSettings(join_port=1)
        )
        self.engines = acting_fleet(settings, self.diary, self.kernel)
        self.hosts = HostFleet(
            endpoint="tcp://127.0.0.1:0",
            guests=HostGuests(self.keys),
            directory=HostDirectory("m", "1", self.engines.parts.epochs),
            engines=self.engines,
            frontends=self.engines.frontends,
            on_membership=self.diary,
            on_event=self.diary,
            now_s=boottime_s,
            lease=LEASE,
            on_said=self._show,
            on_reports=self.diary,
        )

    def _show(self, text: str) -> None:
        change = msgspec.json.decode(text)
        for row in change.get("processes", ()):
            self.rows.setdefault(row["place"], {}).update(row)
        for place in change.get("gone", ()):
            del self.rows[place]

    async def wait_shown(self, *places: str) -> None:
        """Until viewers see these places of hosts."""
        are_shown = lambda: self.rows.keys() == set(places)  # noqa: E731
        await wait_until(are_shown, f"{list(self.rows)}, not {places}", seconds=DEADLINE_S)

    async def wait_report(self, **wanted: object) -> HostReport:
        """Until a report of the only host says this."""
        for count in itertools.count(1):
            reports: HostReports = await self.diary.wait_for(HostReports, count)
            for report in reports.hosts:
                if attrs.asdict(report).items() >= wanted.items():
                    return report
        raise AssertionError("counting does not end")

    def host(self, name: str = "b", acts: str = "ready", **changes: Any) -> tuple[Host, Diary]:
        diary = Diary()
        settings = acting_settings([acts] * 3, [acts] * 3)
        plan = HostPlan(
            name=name,
            heads=[self.hosts.address],
            keys=self.keys,
            engines=1,
            engine=settings.engine,
            model_hash="m",
            version="1",
            engine_module=ACTING_ENGINE,
        )
        return Host(attrs.evolve(plan, **changes), diary, self.kernel), diary

    async def wait_listed(self, *wanted: tuple[int, EngineState, bool]) -> list[EngineMember]:
        """Until the newest membership lists exactly these ranks, states, silences."""
        count = len(self.diary.of(EngineMembership))
        while True:
            members = self.engines.directory.snapshot().engines
            if [(m.rank, m.state, m.silent) for m in members] == list(wanted):
                return members
            count += 1
            await self.diary.wait_for(EngineMembership, count)


@attrs.define(eq=False)
class RaisesIn:
    """Task of this nursery that is expected to be refused."""

    nursery: trio.Nursery
    error: JoinRefusedByHead | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def run(self, async_fn: Callable[[], Awaitable[None]]) -> None:
        try:
            await async_fn()
        except JoinRefusedByHead as error:
            self.error = error
        self.ended.set()

    async def wait(self) -> JoinRefusedByHead | None:
        await self.ended.wait()
        return self.error


@asynccontextmanager
async def open_bed() -> AsyncIterator[Bed]:
    bed = Bed()
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with (
            running_kernel(bed.kernel),
            open_service(bed.hosts.run, name="hosts"),
        ):
            yield bed


READY = EngineState.READY


async def test_a_host_joins_is_listed_ordered_about_and_leaves() -> None:
    async with open_bed() as bed:
        host, diary = bed.host()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.run)
            (member,) = await bed.wait_listed((0, READY, False))
            assert member.host == "b"
            assert (await bed.diary.wait_for(HostJoined)).ranks == [0]
            assert (await bed.diary.wait_for(HostSaid)).text.startswith("engine 0: ready")
            place = Place(Role.ENGINE, 0)
            assert bed.hosts.places() == [PlaceState(place, READY, member.epoch, "on host b")]
            found = [bed.hosts.has(place) for place in ("engine 0 worker 0", "host b")]
            other = [bed.hosts.has(place) for place in ("engine 1", "frontend 0", "host c")]
            assert (found, other) == ([True] * 2, [False] * 3)
            (tree,) = await bed.hosts.trees()
            assert (tree.name, [each.name for each in tree.processes]) == ("host b", ["engine 0"])
            await bed.hosts.answer("engine 0", ControlQuestion(ControlCall.RESTART, place))
            await diary.wait_for(ChildReady, 2)
            (again,) = await bed.wait_listed((0, READY, False))
            assert again.epoch > member.epoch
            order = SignalOrder("engine 0", Signal.KILL, pid=1)
            question = ControlQuestion(ControlCall.SIGNAL, order=order)
            with pytest.raises(ControlCallRefused, match="is another process by now"):
                await bed.hosts.answer("engine 0", question)
            await host.leave()
            await bed.wait_listed()
            assert bed.engines.directory.snapshot().removed == {0: again.epoch}
            assert await bed.diary.wait_for(HostLost) == HostLost("b", "left", is_in_order=True)
            nursery.cancel_scope.cancel("it has left")
        with pytest.raises(ControlCallRefused, match="no engine 0 on any host"):
            await bed.hosts.answer("engine 0", question)


async def test_a_host_that_drains_gives_away_what_it_has_and_leaves_when_it_is_empty() -> None:
    async with open_bed() as bed:
        host, _ = bed.host(acts="busy 4", drain_grace_s=0.1)
        drain = ControlQuestion(ControlCall.DRAIN, host="b")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.run)
            await bed.wait_listed((0, READY, False))
            bed.hosts.hosts["b"].admission = attrs.evolve(bed.hosts.hosts["b"].admission, wire=1)
            with pytest.raises(ControlCallRefused, match="drained by SIGTERM alone"):
                await bed.hosts.answer("host b", drain)
            bed.hosts.hosts["b"].admission = attrs.evolve(bed.hosts.hosts["b"].admission, wire=2)
            await bed.hosts.answer("host b", drain)
            await bed.hosts.answer("host b", drain)
            await bed.wait_listed()
        listed = [each.engines for each in bed.diary.of(EngineMembership) if each.engines]
        phases = [(members[0].draining, members[0].emptying) for members in listed]
        drains = [(True, False), (True, True)]
        assert [each for each, _ in itertools.groupby(phases)] == [(False, False), *drains]
        said = [each.text for each in bed.diary.of(HostSaid) if "drains" in each.text]
        assert said == [
            "drains: its engines take nothing new, and have 1 request",
            "drains: 1 request to go on elsewhere",
        ]


async def test_a_host_that_loses_its_head_while_it_drains_joins_no_other() -> None:
    async with open_bed() as bed:
        host, diary = bed.host(acts="busy 999", drain_grace_s=60.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.run)
            await bed.wait_listed((0, READY, False))
            nursery.start_soon(host.leave)
            await diary.wait_for(HostSaid)
            bed.hosts._lose(bed.hosts.hosts["b"], "told so")
            await diary.wait_for(HostLost)
            await wait_until(lambda: host.life is None, "its life is over", seconds=DEADLINE_S)
            await trio.testing.wait_all_tasks_blocked()
            assert len(diary.of(HostJoined)) == 1
            nursery.cancel_scope.cancel("the test is over")


async def test_an_engine_that_computes_unlike_the_one_before_it_is_named() -> None:
    async with open_bed() as bed, trio.open_nursery() as nursery:
        nursery.start_soon(bed.host()[0].run)
        await bed.wait_listed((0, READY, False))
        nursery.start_soon(bed.host("c", acts="other")[0].run)
        await bed.wait_listed((0, READY, False), (1, READY, False))
        found = bed.diary.of(EngineDiffers)
        assert [(each.child, each.numerics_id) for each in found] == [("engine 1", "other")]
        nursery.cancel_scope.cancel("it was named")


async def test_a_host_that_has_used_its_epochs_gets_more() -> None:
    async with open_bed() as bed, trio.open_nursery() as nursery:
        host, _ = bed.host()
        nursery.start_soon(host.run)
        (member,) = await bed.wait_listed((0, READY, False))
        assert host.life is not None
        assert host.life.fleet is not None
        epochs = host.life.fleet.parts.epochs
        used = [next(epochs) for _ in range(EPOCHS_OF_BLOCK - 1)]
        assert used[0] > member.epoch
        is_given = lambda: next(epochs, 0) > used[-1]  # noqa: E731
        await wait_until(is_given, "there are more", seconds=DEADLINE_S)
        nursery.cancel_scope.cancel("it has more")


async def test_a_host_that_ends_without_a_word_is_lost_and_another_has_its_rank() -> None:
    async with open_bed() as bed:
        (host, _), (other, _) = bed.host("b"), bed.host("c")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.run)
            (member,) = await bed.wait_listed((0, READY, False))
            nursery.cancel_scope.cancel("it ends")
        await bed.diary.wait_for(HostLost)
        await bed.wait_listed()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.run)
            (second,) = await bed.wait_listed((0, READY, False))
            assert (second.host, second.epoch > member.epoch) == ("c", True)
            nursery.cancel_scope.cancel("it ends")


async def test_a_host_without_its_head_ends_its_engines_and_joins_the_next_one() -> None:
    bed = Bed()
    following = Bed(keys=bed.keys, kernel=bed.kernel)
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with running_kernel(bed.kernel), trio.open_nursery() as nursery:
            async with open_service(bed.hosts.run, name="hosts"):
                host, diary = bed.host()
                nursery.start_soon(host.run)
                await bed.wait_listed((0, READY, False))
                following.hosts.endpoint = bed.hosts.address
            assert "lost its head" in (await diary.wait_for(HostLost)).cause
            async with open_service(following.hosts.run, name="hosts"):
                await following.wait_listed((0, READY, False))
                nursery.cancel_scope.cancel("the test is over")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_hash": "n"}, "its model's files are n, the head's m"),
        ({"name": "a b"}, "its name is not made of"),
    ],
)
async def test_what_differs_is_named_once(changes: dict[str, Any], reason: str) -> None:
    async with open_bed() as bed:
        host, _ = bed.host(**changes)
        with pytest.raises(JoinRefusedByHead, match=reason):
            await host.run()
        assert bed.hosts.hosts == {}


async def test_a_host_speaks_the_version_before_with_a_head_of_that() -> None:
    async with open_bed() as bed:
        bed.hosts.directory.wire -= 1
        host, _ = bed.host()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.run)
            await bed.wait_listed((0, READY, False))
            (known,) = bed.hosts.hosts.values()
            assert host.life is not None
            assert known.admission.wire == host.life.wire == HOST_WIRE - 1
            nursery.cancel_scope.cancel("the test is over")


async def test_settings_that_a_host_cannot_read_are_named_by_it() -> None:
    async with open_bed() as bed:
        changed: dict[str, Any] = {"model_name": 7}
        unknown = attrs.evolve(bed.engines.settings, **changed)
        bed.engines.parts = attrs.evolve(bed.engines.parts, settings=unknown)
        host, _ = bed.host()
        with pytest.raises(JoinRefusedByHead, match="settings cannot be used here"):
            await host.run()


async def test_a_host_with_another_key_is_not_let_in() -> None:
    async with open_bed() as bed:
        mine = make_cluster_keys()
        host, diary = bed.host(keys=attrs.evolve(bed.keys, hosts=mine.hosts))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.run)
            assert "did not let it in" in (await diary.wait_for(HostLost)).cause
            nursery.cancel_scope.cancel("it is not let in")
        assert bed.diary.of(HostJoined) == []


async def test_keys_are_rotated_while_hosts_serve_and_who_has_a_retired_one_is_refused() -> None:
    async with open_bed() as bed:
        (old, _), rotated = bed.host("b"), bed.keys.rotated()
        bed.hosts.guests.read = lambda: rotated
        async with trio.open_nursery() as nursery:
            refused = RaisesIn(nursery)
            nursery.start_soon(refused.run, old.run)
            await bed.wait_listed((0, READY, False))
            assert bed.hosts.reload() == []
            nursery.start_soon(bed.host("c", keys=rotated)[0].run)
            await bed.wait_listed((0, READY, False), (1, READY, False))
            bed.hosts.guests.read = rotated.retired
            assert bed.hosts.reload() == ["b"]
            assert "its key was retired" in str(await refused.wait())
            await bed.wait_listed((1, READY, False))
            again, diary = bed.host("b")
            nursery.start_soon(again.run)
            assert "did not let it in" in (await diary.wait_for(HostLost)).cause
            nursery.cancel_scope.cancel("the test is over")


async def test_memory_is_kept_for_a_while_without_a_head() -> None:
    bed = Bed()
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with running_kernel(bed.kernel), trio.open_nursery() as nursery:
            async with open_service(bed.hosts.run, name="hosts"):
                host, diary = bed.host(keep_s=0.1)
                nursery.start_soon(host.run)
                await bed.wait_listed((0, READY, False))
            said = await diary.wait_for(HostSaid)
            assert said.text == "gives back its engines' memory: no head for 0.1 s"
            nursery.cancel_scope.cancel("the test is over")


async def test_who_is_not_let_in_now_leaves_no_link_behind() -> None:
    async with open_bed() as bed:
        (host, _), (double, refusals) = bed.host("b"), bed.host("b")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.run)
            await bed.wait_listed((0, READY, False))
            nursery.start_soon(double.run)
            assert "is here already" in (await refusals.wait_for(HostLost)).cause
            links = bed.hosts._channel.links
            await wait_until(lambda: len(links.peers) == 1, "it has none", seconds=DEADLINE_S)
            nursery.cancel_scope.cancel("the test is over")


async def test_a_ticket_is_for_one_host_until_it_is_withdrawn() -> None:
    async with open_bed() as bed:
        first = bed.hosts.make_ticket("b")
        host, diary = bed.host(keys=first, patience_s=0.5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.run)
            await bed.wait_listed((0, READY, False))
            bed.hosts.make_ticket("c")
            assert bed.engines.directory.snapshot().engines, "another's ticket changes nothing"
            second = bed.hosts.make_ticket("b")
            await bed.wait_listed()
            assert (await bed.diary.wait_for(HostLost)).cause == "was given up by its launcher"
            following, _ = bed.host(keys=second)
            nursery.start_soon(following.run)
            await bed.wait_listed((0, READY, False))
            assert "lost its head" in (await diary.wait_for(HostLost)).cause
            # Its patience ends while it dials: it is not let in again.
            await diary.wait_for(HostLost, 2)
            nursery.cancel_scope.cancel("the test is over")
        assert len(bed.diary.of(HostJoined)) == 2


async def test_a_host_with_patience_ends_when_no_head_lets_it_in() -> None:
    async with open_bed() as bed:
        host, diary = bed.host(keys=make_cluster_keys(), patience_s=0.2)
        await host.run()
        assert "did not let it in within 0.2 s" in (await diary.wait_for(HostLost)).cause


async def test_a_host_is_shown_with_its_engines_while_somebody_views() -> None:
    async with open_bed() as bed:
        (host, _), (later, _) = bed.host("b"), bed.host("c")
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as first:
                first.start_soon(host.run)
                await bed.wait_listed((0, READY, False))
                assert bed.rows == {}, "nobody views"
                bed.hosts.watch(1)
                await bed.wait_shown("host b", "engine 0")
                assert bed.rows["engine 0"]["parent"] == "host b"
                (row,) = bed.hosts.rows()
                assert (row["place"], row["state"], row["pid"]) == ("host b", "up", os.getpid())
                bed.rows.clear()
                bed.hosts.watch(2)
                await bed.wait_shown("host b", "engine 0")
                nursery.start_soon(later.run)  # it joins while somebody views
                await bed.wait_shown("host b", "engine 0", "host c", "engine 1")
                first.cancel_scope.cancel("it ends")
            await bed.wait_shown("host c", "engine 1")
            bed.hosts.watch(0)
            life = later.life
            assert life is not None
            assert life.view is not None
            watch = life.view.watch
            await wait_until(lambda: not watch.is_watched, "it is watched", seconds=DEADLINE_S)
            nursery.cancel_scope.cancel("the test is over")


async def test_frontends_hear_how_hosts_are() -> None:
    async with open_bed() as bed:
        host, _ = bed.host()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.run)
            report = await bed.wait_report(name="b", state="up", engines_ready=1)
            assert (report.rss_bytes > 0, report.lease_left_s > 0) == (True, True)
            await bed.wait_listed((0, READY, False))
            question = ControlQuestion(
                ControlCall.SIGNAL, order=SignalOrder("engine 0", Signal.KILL)
            )
            await bed.hosts.answer("engine 0", question)
            said = await bed.diary.wait_for(HostSaid, 2)
            assert said.mark["place"] == "engine 0"
            assert said.mark["kind"] == "died"
            assert "SIGKILL" in said.mark["text"]
            nursery.cancel_scope.cancel("it ends")
        await bed.wait_report(name="b", state="lost", times_lost=1)


async def test_a_host_that_leaves_is_not_counted_as_lost_and_one_that_could_not_go_on_is() -> None:
    async with open_bed() as bed:
        for number, (reason, names) in enumerate([("left", []), (LEASE_OVER, ["b"])]):
            host, _ = bed.host()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(host.run)
                await bed.wait_listed((0, READY, False))
                assert host.life is not None
                host.life._send(Leave(reason))
                lost = await bed.diary.wait_for(HostLost, 1 + number)
                assert lost.cause == reason
                nursery.cancel_scope.cancel("it has left")
            reports = bed.hosts.board.reports(boottime_s())
            assert [(each.name, each.state) for each in reports] == [(n, "lost") for n in names]


async def test_a_signal_to_a_host_itself_is_answered_first() -> None:
    async with open_bed() as bed:
        host, _ = bed.host()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.run)
            await bed.wait_listed((0, READY, False))
            order = SignalOrder("host b", Signal.CONTINUE)
            question = ControlQuestion(ControlCall.SIGNAL, order=order)
            reply = await bed.hosts.answer("host b", question)
            found = msgspec.json.decode(reply, type=SignalOrder)
            assert found == attrs.evolve(order, pid=os.getpid())
            nursery.cancel_scope.cancel("the test is over")
