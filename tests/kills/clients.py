"""Clients of the kill campaign: the unmodified `openai` SDK, which blocks, each in a thread.

Its own retries are off, as they would hide a failure. A client that `comes_back` and whose
connection breaks goes on by number, as the README says: a response by `retrieve` or, in a lane, by
`response.resume`, a chat behind the `id:` of its last event. What had no event yet is sent again; a
streamed response by its idempotency key. Any other client takes a broken connection for a failure.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from openai import APIError, OpenAI, OpenAIError, Stream
from openai.types.chat import ChatCompletionChunk
from websockets.exceptions import WebSocketException

from .requests import chat_body, choices_of, lane_event, response_body
from .slots import Account, Slot

# An answer of which nothing comes for so long never comes.
SILENCE_S = 600.0
# Who was cut off or refused waits so long.
RETURN_S = 0.02
# Refusals that ask to come again: by another connection, or when the next life has adopted.
DRAINING, UNREACHABLE = "server_draining", "response_unreachable"
COME_AGAIN = frozenset({DRAINING, UNREACHABLE})

# The server's pings do: a client that is behind reads late what answers its own.
PATIENT: Any = {"ping_interval": None}

# By lane: a slot, and its request.
Running = dict[str, tuple[Slot, str]]


@attrs.define(eq=False)
class Clients:
    """All that the threads share; `run_…` is one thread's, until its slots ask for no more."""

    client: OpenAI
    account: Account
    # Of each answer at most.
    tokens: int

    # ---- one stream by one connection

    def run_chat(self, slot: Slot) -> None:
        """Streamed chats, one after the other."""
        self._run(slot, "chat", self._read_chat)

    def run_response(self, slot: Slot) -> None:
        """Streamed responses, one after the other."""
        self._run(slot, "response", self._read_response)

    def _run(self, slot: Slot, kind: str, read: Callable[[Slot, int], None]) -> None:
        while self.account.goes_on(slot):
            number = slot.begin()
            assert slot.answer is not None
            while not slot.answer.ended:
                try:
                    read(slot, number)
                except (OpenAIError, OSError) as error:
                    self._handle_cut(slot, error)
            self.account.take(slot, f"{kind} {number}")

    def _handle_cut(self, slot: Slot, error: Exception) -> None:
        """Wait before the next attempt, or give the answer up."""
        code = error.code if isinstance(error, APIError) else None
        is_refusal = code in COME_AGAIN
        if (code and not is_refusal) or not self._comes_back(slot):
            assert slot.answer is not None
            slot.answer.break_off(f"{type(error).__name__}: {error}")
            return
        if is_refusal:
            slot.refusals += 1
        else:
            slot.break_off()
        time.sleep(RETURN_S)

    def _comes_back(self, slot: Slot) -> bool:
        return self.account.comes_back and time.monotonic() - slot.last_s < SILENCE_S

    def _read_chat(self, slot: Slot, number: int) -> None:
        """From the request, or behind the last event, to the end. Raises what the SDK does."""
        answer = slot.answer
        assert answer is not None
        stream: Stream[ChatCompletionChunk]
        if answer.id:
            stream = self.client.get(
                f"/chat/completions/{answer.id}/stream",
                cast_to=ChatCompletionChunk,
                stream=True,
                stream_cls=Stream[ChatCompletionChunk],
                options={"headers": {"Last-Event-ID": answer.position}},
            )
        else:
            body = chat_body(number, self.tokens)
            slot.ask(choices_of(body))
            stream = self.client.chat.completions.create(**body)
        decoder: Any = stream._decoder  # the SDK reads the `id:`, and shows it nowhere else
        for chunk in stream:
            answer.see_chunk(chunk.to_dict(), decoder._last_event_id or "")
            slot.beat()
        answer.end_chat()

    def _read_response(self, slot: Slot, number: int) -> None:
        """The same of a response."""
        answer, responses = slot.answer, self.client.responses
        assert answer is not None
        if answer.id:
            last = answer.last_number
            stream = responses.retrieve(answer.id, stream=True, starting_after=last)
        else:
            if not answer.is_asked:  # sent again, it is executed once for its key
                slot.ask()
            key = {"Idempotency-Key": f"{slot.name}-{slot.round}"}
            stream = responses.create(**response_body(number, self.tokens), extra_headers=key)
        for event in stream:
            answer.see_event(event.to_dict())
            slot.beat()
        if not answer.ended:
            answer.break_off("the response's stream was over before its end")

    # ---- lanes of a socket

    def run_socket(self, slots: Sequence[Slot]) -> None:
        """Responses in lanes, in each one after the other, over as many sockets as it takes."""
        running: Running = {}
        while running or self.account.any_goes_on(slots):
            try:
                with self.client.responses.connect(
                    websocket_connection_options=PATIENT
                ) as connection:
                    self._run_lanes(connection, slots, running)
            except (OpenAIError, WebSocketException, OSError) as error:
                self._handle_lost(running, error)

    def _run_lanes(self, connection: Any, slots: Sequence[Slot], running: Running) -> None:
        """Until no lane has anything to do here."""
        elsewhere: set[str] = set()
        for slot in slots:
            self._ask(connection, slot, running)
        while running.keys() - elsewhere:
            # As bytes: the SDK's models cost more than all the server does.
            event = json.loads(connection.recv_bytes())
            lane = event.get("stream_id")
            if lane not in running:
                self.account.wrong.append(f"of no lane that runs: {event}")
                raise ConnectionError("an event of no lane")
            slot, request = running[lane]
            assert slot.answer is not None
            refusal = event["error"]["code"] if event["type"] == "error" else ""
            if refusal in COME_AGAIN and self._comes_back(slot):
                slot.refusals += 1
                if refusal == DRAINING:
                    elsewhere.add(lane)
                else:
                    self._ask(connection, slot, running)
                continue
            slot.answer.see_event(event)
            slot.beat()
            if slot.answer.ended:
                del running[lane]
                self.account.take(slot, request)
                self._ask(connection, slot, running)

    def _ask(self, connection: Any, slot: Slot, running: Running) -> None:
        """Go on with what runs in a lane, or begin something if there is more."""
        if slot.name not in running:
            if not self.account.goes_on(slot):
                return
            running[slot.name] = (slot, f"lane {slot.begin()}")
        answer = slot.answer
        assert answer is not None
        if answer.id:
            event = {
                "type": "response.resume",
                "response_id": answer.id,
                "starting_after": answer.last_number,
            }
        else:
            slot.ask()
            event = lane_event(int(running[slot.name][1].removeprefix("lane ")), self.tokens)
        connection.send({**event, "stream_id": slot.name})

    def _handle_lost(self, running: Running, error: Exception) -> None:
        """Leave those lanes that are to be gone on with, by the next socket."""
        for name, (slot, request) in list(running.items()):
            if self._comes_back(slot):
                slot.break_off()
                continue
            assert slot.answer is not None
            slot.answer.break_off(f"{type(error).__name__}: {error}")
            del running[name]
            self.account.take(slot, request)
        time.sleep(RETURN_S)
