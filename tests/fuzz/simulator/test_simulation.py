"""Simulations follow their seed alone; processes die and stop as real ones; checkers can fail."""

import hashlib
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from random import Random
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triolet.fuzz.fuzzer import Finding, draw_round
from triolet.fuzz.fuzzers.simulator import FUZZER, HUNT, run_campaign, trace_of
from triolet.fuzz.simulator.bugs import BUGS
from triolet.fuzz.simulator.directed import DIRECTED
from triolet.fuzz.simulator.kernel import SimKernel, SimProcess
from triolet.fuzz.simulator.mutations import MODULES, PACKAGE, mutate, mutations_of
from triolet.fuzz.simulator.network import make_network
from triolet.fuzz.simulator.plan import CRASHES, Event, Fault, FaultKind, Request, Setup, draw
from triolet.fuzz.simulator.simulation import simulate
from triolet.fuzz.simulator.streams import Model, Piece, StreamHistory, Violation, want
from triolet.fuzz.simulator.task_order import seeded_tasks
from triolet.nurseries.processes.boot import EXIT_FAILED
from triolet.nurseries.processes.process import ProcessSpec, open_process
from triolet.nurseries.processes.process_exit import EXIT_CHILD_KILLED, ProcessDied, ProcessExit
from triolet.transports.links.channel import Peer, PeerUp

REQUEST = Request(name="a", at_s=0.0, frontend=0, prompt=[9, 8], seed=3, max_tokens=6)
SEEDS = 12
KILLED = int(signal.SIGKILL)
ENDS = ("finished", "left", "died", "refused")


def test_every_plan_has_three_crashes() -> None:
    for seed in range(100):
        events = draw(Random(seed), 14)
        assert isinstance(events[0], Setup)
        assert sum(isinstance(e, Fault) and e.kind in CRASHES for e in events) >= 3


@pytest.mark.slow
def test_a_seed_has_one_trace_whatever_strings_hash_to() -> None:
    again = f"""
from triolet.fuzz.fuzzers.simulator import run_campaign
print(run_campaign({SEEDS}, 1).digest)
"""
    run = subprocess.run(
        [sys.executable, "-P", "-c", again],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    campaign = run_campaign(SEEDS, 1)
    assert run.stdout.strip() == campaign.digest
    assert f"trace {campaign.digest}" in campaign.lines()


def digest(lines: list[str]) -> str:
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def test_a_seed_can_be_read_and_a_violation_names_its_trace() -> None:
    assert digest(list(trace_of(1))) == simulate(draw_round(FUZZER, 1, 0)).digest
    lines: list[str] = []
    with pytest.raises(Violation) as caught:
        simulate([Setup(), REQUEST], BUGS["a finish with a token is lost"], lines=lines)
    assert caught.value.__notes__ == [f"trace {digest(lines)}"]


def test_a_death_that_a_survivor_could_make_good_ends_no_stream() -> None:
    kill = Fault(kind=FaultKind.KILL_ENGINE, at_s=0.0, tokens=20)
    requests = [attrs.evolve(REQUEST, name=f"request-{n}", seed=n, max_tokens=40) for n in range(4)]
    outcome = simulate([Setup(engines=2), *requests, kill])
    assert outcome.reached["stream finished"] == 4
    assert outcome.reached["sent again"]
    with pytest.raises(Violation):
        simulate([Setup(engines=2), *requests, kill], BUGS["a replay forgets what was delivered"])


@pytest.mark.parametrize("tokens", [0, 20, 40])
def test_streams_of_an_engine_that_is_removed_go_on_at_one_that_was_added(tokens: int) -> None:
    requests = [attrs.evolve(REQUEST, name=f"request-{n}", seed=n, max_tokens=40) for n in range(6)]
    more = Fault(kind=FaultKind.ADD_ENGINE, at_s=0.0, tokens=tokens)
    fewer = [
        Fault(kind=FaultKind.REMOVE_ENGINE, at_s=0.0, tokens=tokens + 40 * each, engine=each)
        for each in (1, 2)
    ]
    kill = Fault(kind=FaultKind.KILL_ENGINE, at_s=0.0, tokens=tokens + 60, engine=0)
    outcome = simulate([Setup(engines=2), *requests, more, *fewer, more, kill])
    assert outcome.reached["stream finished"] == len(requests)
    assert outcome.reached["add engine"] == outcome.reached["remove engine"] == 2
    assert outcome.reached["sent again"]


def test_clients_come_back_to_what_a_killed_frontend_had() -> None:
    long = attrs.evolve(REQUEST, max_tokens=40)
    asked = [
        attrs.evolve(long, logprobs=1, n=2),
        attrs.evolve(long, stop_text_at=30, back_after_s=0.3),
        attrs.evolve(long, grants=4, pause_s=0.01),
        attrs.evolve(long, back_after_s=math.inf),
        attrs.evolve(long, is_resumable=False),
        attrs.evolve(REQUEST, max_tokens=2, again_after_s=2.0),
    ]
    requests = [attrs.evolve(each, name=f"request-{n}", seed=n) for n, each in enumerate(asked)]
    kill = Fault(kind=FaultKind.KILL_BOTH, at_s=0.0, tokens=40)
    reached = simulate([Setup(engines=2, journal_bytes=0), *requests, kill]).reached
    assert reached["stream lost with its frontend"] == 5
    assert reached["came back"] == 3
    assert reached["stream abandoned"] == reached["read again finished"] == 1
    assert reached["stream finished"] == 5


def test_a_stream_ends_two_lives_that_adopt_it_and_no_more() -> None:
    cursed = attrs.evolve(REQUEST, max_tokens=40, ends_adopters=True)
    kill = Fault(kind=FaultKind.KILL_FRONTEND, at_s=0.0, tokens=40)
    reached = simulate([Setup(), cursed, *innocents(3), kill]).reached
    assert reached["adopter crashed by a stream"] == 2
    assert reached["stream lost"] == 1
    assert reached["stream finished"] == 3


def test_a_frontend_that_crashes_again_and_again_comes_back() -> None:
    long = [
        attrs.evolve(REQUEST, name=f"request-{n}", seed=n, max_tokens=40, back_after_s=n / 10)
        for n in range(3)
    ]
    crashes = [
        Fault(kind=FaultKind.CRASH_FRONTEND, at_s=at_s, tokens=10 * (n + 1))
        for n, at_s in enumerate((0.0, 0.2, 0.4, 0.6))
    ]
    reached = simulate([Setup(frontends=2), *long, *crashes]).reached
    assert reached["stream finished"] == 3
    assert reached["came back"] >= 6


@pytest.mark.parametrize("steps", range(6))
def test_a_successor_dies_at_a_store_of_its_adoption(steps: int) -> None:
    kill = Fault(kind=FaultKind.KILL_ADOPTER, at_s=0.0, tokens=40, steps=steps)
    reached = simulate([Setup(), *innocents(3), kill]).reached
    assert reached["adopter killed"] == 1
    assert reached["stream finished"] == 3


def innocents(count: int) -> list[Request]:
    return [
        attrs.evolve(REQUEST, name=f"innocent-{n}", prompt=[9, n], seed=100 + n, max_tokens=40)
        for n in range(count)
    ]


@pytest.mark.parametrize("hangs", [False, True], ids=["crashes", "hangs"])
@pytest.mark.parametrize("fatal_at", [0, 3])
@pytest.mark.parametrize("engines", [1, 2])
def test_poison_ends_two_engines_and_no_other_stream(
    engines: int, fatal_at: int, hangs: bool
) -> None:
    poison = attrs.evolve(REQUEST, max_tokens=40, fatal_at=fatal_at, is_poison=True, hangs=hangs)
    reached = simulate([Setup(engines=engines), poison, *innocents(7)]).reached
    assert reached["death by poison"] == 2
    assert reached["stream refused"] == reached["refused"] == 1
    assert reached["stream finished"] == 7


def test_two_poisons_are_parted_from_the_innocent_in_their_batch() -> None:
    poisons = [
        attrs.evolve(
            REQUEST, name=f"poison-{n}", prompt=[9, 90 + n], seed=n, max_tokens=40, fatal_at=3 + n
        )
        for n in range(2)
    ]
    poisons = [attrs.evolve(each, is_poison=True) for each in poisons]
    reached = simulate([Setup(engines=1), *poisons, *innocents(6)]).reached
    assert reached["stream refused"] == reached["refused"] == 2
    assert reached["death by poison"] <= 2 * len(poisons)
    assert reached["stream finished"] == 6


@pytest.mark.parametrize("seed", [2, 5, 8])
def test_poison_that_a_frontend_took_before_its_client_knew_ends_two_engines(seed: int) -> None:
    poison = attrs.evolve(REQUEST, max_tokens=40, fatal_at=4, is_poison=True, back_after_s=1.0)
    kill = Fault(kind=FaultKind.KILL_FRONTEND_AT_STORE, at_s=0.0, steps=2)
    reached = simulate([Setup(engines=1, seed=seed), poison, *innocents(2), kill]).reached
    assert reached["adopted"]
    assert reached["death by poison"] == 2
    assert reached["stream refused"] == 1
    assert reached["stream finished"] == 2


def test_a_death_from_outside_has_no_suspects() -> None:
    kills = [Fault(kind=FaultKind.KILL_ENGINE, at_s=0.0, tokens=20 * n) for n in range(1, 9)]
    reached = simulate([Setup(engines=1), *innocents(7), *kills]).reached
    assert reached["kill engine"] == 8
    assert reached["stream finished"] == 7
    assert reached["sent again"] > reached["suspected"] == 0


@pytest.mark.parametrize(("for_s", "noticed"), [(0.3, 0), (4.0, 1)])
@pytest.mark.parametrize("kind", [FaultKind.STOP_ENGINE, FaultKind.STOP_FRONTEND])
def test_a_process_that_is_stopped_is_ended_if_it_does_not_go_on(
    kind: FaultKind, for_s: float, noticed: int
) -> None:
    stop = Fault(kind=kind, at_s=0.0, tokens=20, for_s=for_s)
    reached = simulate([Setup(engines=1), *innocents(4), stop]).reached
    assert reached["stop noticed"] == noticed
    assert reached["stream finished"] == 4


@pytest.mark.parametrize("kind", [FaultKind.KILL_ENGINE, FaultKind.KILL_FRONTEND])
def test_a_process_that_outlives_its_kill_is_waited_for(kind: FaultKind) -> None:
    kill = Fault(kind=kind, at_s=0.0, tokens=20)
    reached = simulate([Setup(engines=1, hanging=1.0), *innocents(4), kill]).reached
    assert reached[str(kind)] == reached["outlived its kill"] == 1
    assert reached["stream finished"] + reached["stream lost with its frontend"] >= 4


def test_a_process_that_is_stopped_and_then_restarted_has_the_time_of_the_ladder() -> None:
    drain = Fault(kind=FaultKind.DRAIN, at_s=0.05, for_s=0.6)
    stop = Fault(kind=FaultKind.STOP_ENGINE, at_s=0.35, for_s=1.7)
    reached = simulate([Setup(engines=1), *innocents(4), drain, stop]).reached
    assert reached["drain"] == reached["stop engine"] == 1
    assert not reached["stop noticed"]
    assert reached["stream finished"] == 4


@pytest.mark.parametrize("name", list(DIRECTED))
def test_a_directed_plan_holds(name: str) -> None:
    ends = Counter(simulate(DIRECTED[name]).reached)
    requests = sum(isinstance(event, Request) for event in DIRECTED[name])
    assert sum(ends[f"stream {end}"] for end in ENDS) == requests


def test_quick_bugs_are_planted_by_name() -> None:
    assert set(FUZZER.faults) < set(BUGS)
    assert len(BUGS) >= 70


# ---- processes


def kernel_of(main: object, nursery: trio.Nursery) -> SimKernel:
    kernel = SimKernel({"it": main}, Random(0), lambda text: None)  # type: ignore[dict-item]
    kernel.nursery = nursery
    return kernel


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with seeded_tasks("1"):
        yield


@pytest.mark.parametrize(
    ("how", "code", "number"),
    [
        ("killed", None, KILLED),
        ("returns", EXIT_FAILED, None),
        ("raises", EXIT_CHILD_KILLED, None),
        ("of a fault", EXIT_FAILED, None),
    ],
)
async def test_a_process_dies_as_a_real_one(
    how: str, code: int | None, number: int | None, autojump_clock: trio.testing.MockClock
) -> None:
    async def main(process: SimProcess) -> None:
        if how == "killed":
            await trio.sleep_forever()
        if how == "raises":
            raise ProcessDied(ProcessExit("its own", 0, None, KILLED))
        if how == "of a fault":
            raise ProcessDied(ProcessExit("its own", 0, 1, None))

    async with trio.open_nursery() as nursery:
        kernel = kernel_of(main, nursery)
        kernel.explained = (ProcessDied,)
        async with open_process(ProcessSpec("it", "it", kernel=kernel)) as process:
            await trio.sleep(1)
            if how == "killed":
                assert kernel.is_usable(process.pid)
                kernel.kill(kernel.processes[0])
            found = await process.wait_exited()
            assert kernel.is_exiting(process.pid)
        assert (found.code, found.signal) == (code, number)
        assert not kernel.false_kills


async def test_a_stopped_process_does_nothing_until_it_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ticks: list[float] = []

    async def main(process: SimProcess) -> None:
        while True:
            await trio.sleep(1)
            ticks.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        kernel = kernel_of(main, nursery)
        async with open_process(ProcessSpec("it", "it", kernel=kernel)):
            await trio.sleep(2.5)
            kernel.stop(kernel.processes[0])
            assert not kernel.is_usable(kernel.processes[0].pid)
            await trio.sleep(3)
            assert len(ticks) == 2
            kernel.resume(kernel.processes[0])
            await trio.sleep(1.1)
            assert [round(tick, 6) for tick in ticks[2:]] == [5.5, 6.5]


# ---- network


async def test_a_way_that_is_cut_carries_nothing_and_links_recover(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = make_network(Random(1), lambda text: None)
    hub = network.open_hub(Peer("frontend", 0, 1))
    spoke = network.open_spoke(Peer("engine", 0, 2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(network.run)
        for channel in (hub, spoke):
            await nursery.start(channel.run_deadlines)
            await nursery.start(channel.run_input)
            await nursery.start(channel.run_output)
        network.cut((0, 0))
        spoke.connect(hub.peer_self, *hub.endpoints)
        with trio.move_on_after(5) as patience:
            await hub.receive()
        assert patience.cancelled_caught
        network.cuts.clear()
        assert await hub.receive() == [PeerUp(spoke.peer_self, 1)]
        network.remove(spoke.peer_self)
        assert network.find_spoke(spoke.peer_self) is None
        nursery.cancel_scope.cancel("over")


# ---- the oracle


def history() -> StreamHistory:
    return want(REQUEST, Model(model_len=100, vocab_size=2000, eos=(1,)))


def piece(token_ids: list[int], count: int, reason: str | None = None) -> Piece:
    return Piece(0, token_ids, count, reason, None, None)


def test_a_stream_like_the_oracle_s_holds() -> None:
    stream = history()
    tokens = stream.wanted[0][0].tokens
    stream.take(piece(tokens[:2], 2))
    stream.take(piece(tokens[2:], 6, "length"))
    stream.finish("finished")
    assert stream.end == "finished"


def test_who_comes_back_reads_from_the_beginning() -> None:
    stream = history()
    tokens = stream.wanted[0][0].tokens
    stream.take(piece(tokens[:3], 3))
    stream.begin_life()
    stream.take(piece(tokens[:2], 2))
    stream.take(piece(tokens[2:5], 5))
    stream.take(piece(tokens[5:], 6, "length"))
    stream.finish("finished")
    assert stream.taken == [tokens]


def lose_a_token(stream: StreamHistory, rest: list[int]) -> None:
    stream.take(piece(rest[1:2], 3))


def take_another(stream: StreamHistory, rest: list[int]) -> None:
    stream.take(piece([rest[0] + 1], 3))


def end_early(stream: StreamHistory, rest: list[int]) -> None:
    stream.take(piece(rest[:1], 3, "length"))


def go_on_after_the_end(stream: StreamHistory, rest: list[int]) -> None:
    stream.take(piece(rest, 6, "length"))
    stream.take(piece([5], 7))


def end_without_last_output(stream: StreamHistory, rest: list[int]) -> None:
    stream.finish("finished")


def come_back_to_less(stream: StreamHistory, rest: list[int]) -> None:
    stream.begin_life()
    stream.take(piece([], 0, "length"))


def come_back_to_others(stream: StreamHistory, rest: list[int]) -> None:
    stream.begin_life()
    stream.take(piece([stream.taken[0][0] + 1], 1))


def end_twice(stream: StreamHistory, rest: list[int]) -> None:
    stream.finish("left")
    stream.finish("left")


@pytest.mark.parametrize(
    "go_wrong",
    [
        *(lose_a_token, take_another, end_early, come_back_to_less, come_back_to_others),
        *(go_on_after_the_end, end_without_last_output, end_twice),
    ],
)
def test_any_other_stream_is_a_violation(
    go_wrong: Callable[[StreamHistory, list[int]], None],
) -> None:
    stream = history()
    tokens = stream.wanted[0][0].tokens
    stream.take(piece(tokens[:2], 2))
    with pytest.raises(Violation):
        go_wrong(stream, tokens[2:])


def test_other_tokens_are_wanted_where_announced_and_allowed() -> None:
    model = Model(model_len=100, vocab_size=2000, eos=(1,), families=2)
    first, second = (each.tokens for each in want(REQUEST, model).wanted[0])
    allowing = want(attrs.evolve(REQUEST, inexact_ok=True), model)
    inexact = attrs.evolve(piece([], 2), inexact=1)
    back = want(attrs.evolve(REQUEST, inexact_ok=True), model)
    back.take(piece(first[:2], 2))
    for _ in range(2):  # there and back, read one by one
        back.take(inexact)
    back.take(piece(first[2:], 6, "length"))
    for stream in (want(REQUEST, model), allowing):
        stream.take(piece(first[:2], 2))
    with pytest.raises(Violation):
        want(REQUEST, model).take(inexact)
    allowing.take(inexact)
    ((other,),) = allowing.wanted
    assert other.tokens[:2] == first[:2]
    assert len(other.tokens) == len(first)
    assert not {first[2], second[2]} & {other.tokens[2]}
    allowing.take(attrs.evolve(inexact, inexact=2))  # there and back
    allowing.take(piece(other.tokens[2:], 6, "length"))
    allowing.finish("finished")


@pytest.mark.parametrize("shrinks", [True, False])
def test_a_finding_is_shrunk_unless_it_is_enough_that_there_is_one(*, shrinks: bool) -> None:
    def fail(events: Sequence[Event], bug: Any = nullcontext, **_: Any) -> Any:
        raise Violation("always")

    fuzzer = attrs.evolve(HUNT.fuzzer, check=fail)
    hunt = attrs.evolve(HUNT, fuzzer=fuzzer, simulate=fail)
    with pytest.raises(Finding, match="always") as caught:
        run_campaign(1, 7, hunt, shrinks=shrinks)
    assert (len(caught.value.events) < caught.value.drawn) == shrinks


# ---- mutations


def test_a_mutation_inverts_one_comparison() -> None:
    source = (
        "def f(a, b):\n    assert a.epoch < 3\n    return a.epoch < b.epoch or a.name == b.name"
    )
    assert [each.source for each in mutations_of("m", source)] == ["a.epoch < b.epoch"]
    assert "a.epoch >= b.epoch or a.name == b.name" in mutate(source, 0)


def test_every_module_that_is_mutated_has_such_comparisons() -> None:
    for module, tests in MODULES.items():
        assert mutations_of(module, (PACKAGE / module).read_text()), module
        assert all((PACKAGE / folder).is_dir() for folder in tests.split()), tests
