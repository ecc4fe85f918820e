"""Responses by id: who may see them, how cancels wait, what is kept and for how long."""

import pytest
import trio
import trio.testing

from triolet.api.errors import ApiError
from triolet.api.limits import ServerLimits
from triolet.api.response_registry import ActiveResponse, ResponseRegistry
from triolet.runtime.generation import GenerationOutput, GenerationStream
from triolet.runtime.merged_slot import MergedSlot


def active(response_id: str = "r", principal: str = "p") -> ActiveResponse:
    return ActiveResponse(response_id, principal, lambda: {"status": "in_progress"})


async def test_only_the_owner_sees_it() -> None:
    registry = ResponseRegistry(ServerLimits())
    one = active()
    registry.add(one)
    assert registry.get("r", "p") == {"status": "in_progress"}
    for ask in (registry.get, lambda i, p: registry.cancel(i, p, "x")):
        with pytest.raises(ApiError, match="No response"):
            ask("r", "other")
    with pytest.raises(ApiError, match="No response"):
        await registry.cancel_and_wait("r", "other", "x")
    registry.end(one, {"status": "completed"})
    assert registry.get("r", "p") == {"status": "completed"}
    with pytest.raises(ApiError, match="No response"):
        registry.get("r", "other")
    assert registry.active == 0


async def test_a_cancel_interrupts_the_wait_and_is_idempotent() -> None:
    registry = ResponseRegistry(ServerLimits())
    one = active()
    registry.add(one)
    stream = GenerationStream("r", [1], MergedSlot())
    answers = []

    async def ask() -> None:
        answers.append(await registry.cancel_and_wait("r", "p", "test"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        nursery.start_soon(ask)
        assert await one.next_output(stream) is None
        registry.cancel("r", "p", "again")
        assert await one.next_output(stream) is None
        registry.end(one, {"status": "cancelled"})
    assert answers == [{"status": "cancelled"}] * 2
    assert await registry.cancel_and_wait("r", "p", "late") == {"status": "cancelled"}
    registry.cancel("r", "p", "late")


async def test_a_cancel_between_waits_is_not_lost() -> None:
    one = active()
    slot = MergedSlot()
    stream = GenerationStream("r", [1], slot)
    slot.put(GenerationOutput("a", [1], 1))
    assert (await one.next_output(stream)) is not None
    one.cancel("while a write was under way")
    slot.put(GenerationOutput("b", [2], 2))
    assert await one.next_output(stream) is None


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (ServerLimits(finished_responses_max=2), ["r3", "r4"]),
        (ServerLimits(finished_bytes_max=50), ["r3", "r4"]),
        (ServerLimits(finished_bytes_max=5), []),
        (ServerLimits(), ["r0", "r1", "r2", "r3", "r4"]),
    ],
)
async def test_few_are_kept(
    limits: ServerLimits, kept: list[str], autojump_clock: trio.testing.MockClock
) -> None:
    registry = ResponseRegistry(limits)
    for number in range(5):
        one = active(f"r{number}")
        registry.add(one)
        registry.end(one, {"status": "completed"})  # 22 bytes as JSON

    def found() -> list[str]:
        names = []
        for number in range(5):
            try:
                registry.get(f"r{number}", "p")
            except ApiError:
                continue
            names.append(f"r{number}")
        return names

    assert found() == kept
    await trio.sleep(limits.finished_s)
    assert found() == []
