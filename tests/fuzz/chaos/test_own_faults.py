"""Poisons act at their token, wherever it is computed; want of memory is proven, and over."""

import resource
import subprocess
import sys
from collections.abc import Iterator

import attrs
import pytest
import trio

from triolet.engine.config import EngineSettings
from triolet.engine.step_messages import NewRow, RowSampling, Step
from triolet.engine.worker.executor_interface import no_pause
from triolet.fuzz.chaos.fault_plan import LATE_TOKENS_MAX, POISON_SEED
from triolet.fuzz.chaos.faults import Void, kill
from triolet.fuzz.chaos.poisoned_worker import PoisonedExecutor, make_poisoned, tokens_till
from triolet.fuzz.chaos.starving import limits_of, sizes_of, starve

from .test_faults import DEADLINE_S


def executor() -> PoisonedExecutor:
    made = make_poisoned(EngineSettings(executor="null"), 0, no_pause, None)
    assert isinstance(made, PoisonedExecutor)
    assert made.name == "null"
    return made


def row(number: int, seed: int, *, output: int = 0) -> NewRow:
    """A request with a prompt of three tokens."""
    return NewRow(
        row=number,
        token_ids=[9] * (3 + output),
        prompt_tokens=3,
        computed_tokens=0,
        block_ids=[1],
        sampling=RowSampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed),
    )


def step(*rows: int, new: list[NewRow] | None = None, prefills: bool = False) -> Step:
    return Step(
        number=1,
        new=new or [],
        rows=list(rows),
        token_counts=[1] * len(rows),
        samples=[not prefills] * len(rows),
    )


def test_what_is_no_poison_is_harmless() -> None:
    assert [tokens_till(seed) for seed in (0, POISON_SEED - 1)] == [None, None]
    assert tokens_till(POISON_SEED + LATE_TOKENS_MAX + 1) is None
    poisoned = executor()
    assert not poisoned.is_deadly(step(4, new=[row(4, seed=7)]))
    assert not any(poisoned.is_deadly(step(4)) for _ in range(2 * LATE_TOKENS_MAX))


@pytest.mark.parametrize("tokens", [0, 3])
def test_a_poison_acts_at_its_token(tokens: int) -> None:
    poisoned = executor()
    # Chunks of its prompt sample nothing.
    assert not poisoned.is_deadly(step(4, new=[row(4, POISON_SEED + tokens)], prefills=True))
    assert not any(poisoned.is_deadly(step(4)) for _ in range(tokens))
    assert not poisoned.is_deadly(step(5, new=[row(5, seed=7)])), "a step without it"
    assert poisoned.is_deadly(step(4, 5))


def test_where_it_goes_on_it_acts_at_the_same_token() -> None:
    poisoned = executor()
    assert not poisoned.is_deadly(step(2, new=[row(2, POISON_SEED + 3, output=2)]))
    assert poisoned.is_deadly(step(2))


def test_a_row_that_was_its_is_harmless() -> None:
    poisoned = executor()
    assert not poisoned.is_deadly(step(4, new=[row(4, POISON_SEED + 1)]))
    after = attrs.evolve(step(4, new=[row(4, seed=7)]), finished=[4])
    assert not poisoned.is_deadly(after)
    assert not poisoned.is_deadly(step(4))


GROWS = """
print("begun", flush=True)
input()
try:
    bytearray(2**26)
except MemoryError:
    print("no memory", flush=True)
input()
"""


@pytest.fixture
def growing() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has begun, and grows when it is told to."""
    with subprocess.Popen(
        [sys.executable, "-c", GROWS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as popen:
        assert popen.stdout is not None
        assert popen.stdout.readline() == b"begun\n"
        yield popen
        popen.kill()


async def test_want_of_memory_is_proven_and_over(growing: subprocess.Popen[bytes]) -> None:
    pid, pipe, says = growing.pid, growing.stdin, growing.stdout
    assert pipe is not None
    assert says is not None
    seen: list[dict[int, int]] = []

    def grow() -> list[int]:
        seen.append(limits_of(pid))
        pipe.write(b"\n")
        pipe.flush()
        assert says.readline() == b"no memory\n"
        return [pid]

    with trio.fail_after(DEADLINE_S):
        proof, ended = await starve(0.01, grow, pid)
    assert not ended
    assert seen == [{number: size // 2 for number, size in sizes_of(pid).items()}]
    assert f"{seen[0][resource.RLIMIT_AS] / 2**20:.0f} MiB" in proof
    assert set(limits_of(pid).values()) == {resource.RLIM_INFINITY}


async def test_what_ends_of_it_is_not_waited_for(growing: subprocess.Popen[bytes]) -> None:
    async def end_it() -> None:
        assert resource.RLIM_INFINITY not in limits_of(growing.pid).values()
        await kill(growing.pid)

    with trio.fail_after(DEADLINE_S):
        proof, ended = await starve(2 * DEADLINE_S, list, growing.pid, begun=end_it)
        assert ended
        assert "then it was Z" in proof
        with pytest.raises(Void):
            await starve(0.01, list, growing.pid)
