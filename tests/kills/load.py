"""Load of the kill campaign: lanes and chats through the unmodified `openai` SDK.

The SDK blocks, so each socket and each chat has a thread, owned by a task. A slot asks for one
answer after another; each is compared with that of the undisturbed server, or recorded where there
is none yet. Nothing is sent again: the SDK's own retries are off, as they would hide a failure.
"""

import time
from collections.abc import Sequence
from typing import Any

import attrs
import trio
from openai import OpenAI, OpenAIError
from websockets.exceptions import WebSocketException

from .answers import Answer, differences
from .requests import chat_body, lane_event

# Each slot has so many requests, which it asks for in turn.
ROUNDS = 2
# An answer that does not come for so long never comes.
SILENCE_S = 60.0
# A slot whose answer failed waits so long: a server that refuses is not asked in a busy loop.
BACKOFF_S = 0.1


@attrs.define(eq=False)
class Slot:
    """A place that has one stream at a time. Written by its thread, read by the campaign."""

    name: str
    number: int
    round: int = 0
    answer: Answer | None = None
    last_s: float = 0.0
    # {slot's name: longest silence} since the last kill, where this stream met it.
    gaps: dict[str, float] | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether it has seen a token, and no end."""
        answer = self.answer
        return answer is not None and not answer.ended and answer.tokens > 0

    def begin(self) -> int:
        """A new answer; the number of its request."""
        self.answer, self.gaps, self.last_s = Answer(), None, time.monotonic()
        return self.number * ROUNDS + self.round % ROUNDS

    def beat(self) -> None:
        """Something came."""
        now = time.monotonic()
        self._note(now)
        self.last_s = now

    def watch(self, gaps: dict[str, float]) -> None:
        """Note the longest silence there from now on, if a stream is under way."""
        under_way = self.is_under_way
        if under_way:
            self._note(time.monotonic())  # a silence that still lasts
            gaps[self.name] = 0.0
        self.gaps = gaps if under_way else None

    def _note(self, now: float) -> None:
        gaps = self.gaps
        if gaps is not None:
            gaps[self.name] = max(gaps[self.name], now - self.last_s)


@attrs.define(eq=False)
class Load:
    """All slots against one server, until `stopping` is set, or without `expected` once through.

    `expected` is what an undisturbed server answered, by request; `recorded` is what this one did.
    """

    url: str
    tokens: int
    sockets: Sequence[Sequence[Slot]]
    chats: Sequence[Slot]
    expected: dict[str, Answer] | None = None
    recorded: dict[str, Answer] = attrs.field(factory=dict, init=False)
    stopping: bool = attrs.field(default=False, init=False)
    compared: int = attrs.field(default=0, init=False)
    output_tokens: int = attrs.field(default=0, init=False)
    # One entry for each answer that was not as expected.
    wrong: list[str] = attrs.field(factory=list, init=False)

    @property
    def slots(self) -> list[Slot]:
        """Of sockets and chats."""
        return [*(slot for socket in self.sockets for slot in socket), *self.chats]

    async def run(self) -> None:
        """Return when all slots have ended. A server that is killed ends them, too."""
        limiter = trio.CapacityLimiter(len(self.sockets) + len(self.chats))
        with OpenAI(
            api_key="none", base_url=f"{self.url}/v1", max_retries=0, timeout=SILENCE_S
        ) as client:
            async with trio.open_nursery() as nursery:
                for socket in self.sockets:
                    nursery.start_soon(_in_thread, limiter, self._run_socket, client, socket)
                for chat in self.chats:
                    nursery.start_soon(_in_thread, limiter, self._run_chat, client, chat)

    def _goes_on(self, slot: Slot) -> bool:
        return not self.stopping and (self.expected is not None or slot.round < ROUNDS)

    def _take(self, slot: Slot, request: str) -> None:
        answer = slot.answer
        assert answer is not None
        slot.round += 1
        self.compared += 1
        self.output_tokens += sum(len(choice.token_ids) for choice in answer.choices.values())
        self.recorded[request] = answer
        found = [answer.error] if answer.error else []
        if self.expected is not None:
            found = differences(answer, self.expected[request])
        if found:
            self.wrong.append(f"{request}: {'; '.join(found)}")
            time.sleep(BACKOFF_S)

    # ---- in threads

    def _run_chat(self, client: OpenAI, slot: Slot) -> None:
        while self._goes_on(slot):
            number = slot.begin()
            answer = slot.answer
            assert answer is not None
            try:
                for chunk in client.chat.completions.create(**chat_body(number, self.tokens)):
                    answer.see_chunk(chunk.to_dict())
                    slot.beat()
                answer.end_chat()
            except (OpenAIError, OSError) as error:
                answer.break_off(f"{type(error).__name__}: {error}")
            self._take(slot, f"chat {number}")

    def _run_socket(self, client: OpenAI, slots: Sequence[Slot]) -> None:
        while any(self._goes_on(slot) for slot in slots):
            running: dict[str, tuple[Slot, str]] = {}
            try:
                with client.responses.connect() as connection:
                    for slot in slots:
                        self._ask(connection, slot, running)
                    while running:
                        self._see(connection, running)
            except (OpenAIError, WebSocketException, OSError) as error:
                for slot, request in running.values():
                    assert slot.answer is not None
                    slot.answer.break_off(f"{type(error).__name__}: {error}")
                    self._take(slot, request)

    def _ask(self, connection: Any, slot: Slot, running: dict[str, tuple[Slot, str]]) -> None:
        if self._goes_on(slot):
            number = slot.begin()
            running[slot.name] = (slot, f"lane {number}")
            connection.send({**lane_event(number, self.tokens), "stream_id": slot.name})

    def _see(self, connection: Any, running: dict[str, tuple[Slot, str]]) -> None:
        event = connection.recv().to_dict()
        if event.get("stream_id") not in running:
            raise ConnectionError(f"of no lane that runs: {event}")
        slot, request = running[event["stream_id"]]
        assert slot.answer is not None
        slot.answer.see_event(event)
        slot.beat()
        if slot.answer.ended:
            del running[slot.name]
            self._take(slot, request)
            self._ask(connection, slot, running)


async def _in_thread(limiter: trio.CapacityLimiter, run: Any, *arguments: Any) -> None:
    await trio.to_thread.run_sync(run, *arguments, limiter=limiter)


def make_load(
    url: str,
    *,
    tokens: int,
    lanes: int,
    sockets: int,
    chats: int,
    expected: dict[str, Answer] | None = None,
) -> Load:
    """Slots of a load: lanes dealt to so many sockets, and chats."""
    named = [Slot(f"lane-{number}", number) for number in range(lanes)]
    return Load(
        url,
        tokens,
        [named[first::sockets] for first in range(sockets)],
        [Slot(f"chat-{number}", number) for number in range(chats)],
        expected,
    )
