"""Answer of one request as a client saw it, and how it differs from that of an undisturbed server.

Sans-IO: events of a socket and chunks of a chat in, as plain objects. How tokens came together on
their way says nothing; all else does: tokens, text, logprobs, calls, ends, usage, the order of
events and the number of the last one. Ids and dates are drawn for each request, and how much of a
prompt was in a cache depends on what an engine served before: these are not compared.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from triolet.api.openai.response_id import frontend_of

TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
GOOD_ENDS = frozenset({"response.completed", "response.incomplete"})
# What is drawn for each request.
DRAWN = frozenset({"id", "call_id", "item_id", "created_at", "completed_at", "response_id"})
CACHED = "cached_tokens"


@attrs.define
class Choice:
    """One choice of an answer; a lane's is its only one."""

    text: str = ""
    token_ids: list[int] = attrs.field(factory=list)
    logprobs: list[Any] = attrs.field(factory=list)
    # {index of a call: [its name, its arguments]}
    calls: dict[int, list[str]] = attrs.field(factory=dict)
    finish: Any = None


@attrs.define
class Answer:
    """What came for one request. `error` says what must not have come, "" if nothing."""

    # Its request was sent.
    is_asked: bool = False
    # Of the response or completion, "" before its first event.
    id: str = ""
    choices: dict[int, Choice] = attrs.field(factory=dict)
    # Of events, those of one kind in a row once.
    kinds: list[str] = attrs.field(factory=list)
    last_number: int = -1
    # The `id:` of a chat's last event.
    position: str = ""
    # The terminal event's own account.
    final: Any = None
    usage: Any = None
    error: str = ""
    ended: bool = False

    @property
    def tokens(self) -> int:
        """Output tokens of the first choice so far."""
        return len(self.choices[0].token_ids) if 0 in self.choices else 0

    @property
    def frontend(self) -> int | None:
        """The rank of the frontend that executes it, as its id says."""
        return frontend_of(self.id)

    @property
    def end(self) -> list[Any]:
        """Status and reason of a response's end."""
        final = self.final or {}
        return [final.get("status"), final.get("incomplete_details")]

    def see_event(self, event: Mapping[str, Any]) -> None:
        """Take one event of a lane."""
        kind = str(event["type"])
        if self.ended:
            self.blame(f"{kind} came after the end")
        if not self.kinds or self.kinds[-1] != kind:
            self.kinds.append(kind)
        choice = self.choices.setdefault(0, Choice())
        self._see_number(event.get("sequence_number"))
        self._see_id(event.get("response", {}).get("id"))
        if kind.endswith(".delta") or kind in TERMINAL:
            self._see_tokens(choice, event)
        if kind == "response.output_text.delta":
            choice.text += event["delta"]
        elif kind == "response.function_call_arguments.delta":
            choice.calls.setdefault(event["output_index"], ["", ""])[1] += event["delta"]
        elif kind == "response.output_item.added" and event["item"]["type"] == "function_call":
            choice.calls[event["output_index"]] = [event["item"]["name"], ""]
        elif kind in TERMINAL:
            self._see_end(kind, event)

    def see_chunk(self, chunk: Mapping[str, Any], position: str = "") -> None:
        """Take one chunk of a chat, with the `id:` of its event."""
        if chunk.get("error"):
            self.blame(f"error chunk: {chunk['error']}")
        if position and position == self.position:
            self.blame(f"{position} came twice")
        self.position = position
        self._see_id(chunk.get("id"))
        for part in chunk.get("choices", []):
            choice = self.choices.setdefault(part["index"], Choice())
            if choice.finish is not None:
                self.blame(f"choice {part['index']} went on after its end")
            delta = part["delta"]
            choice.text += delta.get("content") or ""
            choice.token_ids += part.get("token_ids") or []
            choice.logprobs += (part.get("logprobs") or {}).get("content") or []
            for call in delta.get("tool_calls") or []:
                known = choice.calls.setdefault(call["index"], ["", ""])
                known[0] += call["function"].get("name") or ""
                known[1] += call["function"].get("arguments") or ""
            if part.get("finish_reason") is not None:
                choice.finish = [part["finish_reason"], part.get("stop_reason")]
        self.usage = chunk.get("usage") or self.usage

    def end_chat(self) -> None:
        """The stream of chunks is over; that must not be too early."""
        self.ended = True
        if self.usage is None or any(one.finish is None for one in self.choices.values()):
            self.blame("the chat was over before its end")

    def break_off(self, why: str) -> None:
        """The connection failed."""
        self.ended = True
        self.blame(why)

    def _see_id(self, response_id: str | None) -> None:
        if response_id and self.id not in ("", response_id):
            self.blame(f"{response_id} is none of {self.id}")
        self.id = response_id or self.id

    def _see_number(self, number: int | None) -> None:
        if number is None:
            return
        if number <= self.last_number:
            self.blame(f"event number {number} came after {self.last_number}")
        self.last_number = number

    def _see_tokens(self, choice: Choice, event: Mapping[str, Any]) -> None:
        token_ids = event.get("token_ids") or []
        index = event.get("token_index", len(choice.token_ids))
        if token_ids and index != len(choice.token_ids):
            self.blame(f"token index {index} where {len(choice.token_ids)} is next")
        choice.token_ids += token_ids
        choice.logprobs += event.get("logprobs") or []

    def _see_end(self, kind: str, event: Mapping[str, Any]) -> None:
        self.ended = True
        if kind not in GOOD_ENDS:
            error = event.get("error") or event["response"]["error"]
            self.blame(f"{kind}: {error.get('code')}: {error.get('message')}")
            return
        response = event["response"]
        self.usage = response.get("usage")
        names = ("status", "incomplete_details", "output")
        self.final = without({name: response.get(name) for name in names}, DRAWN)

    def blame(self, what: str) -> None:
        """Note the first thing that must not have come."""
        self.error = self.error or what


def without(value: Any, names: frozenset[str]) -> Any:
    """A JSON value without the members of these names, at any depth."""
    if isinstance(value, Mapping):
        return {key: without(each, names) for key, each in value.items() if key not in names}
    if isinstance(value, list):
        return [without(each, names) for each in value]
    return value


def differences(seen: Answer, expected: Answer) -> list[str]:
    """In what an answer differs from the expected one, in words; [] if in nothing."""
    found = [seen.error] if seen.error else []
    if sorted(seen.choices) != sorted(expected.choices):
        return [*found, f"choices {sorted(seen.choices)}, not {sorted(expected.choices)}"]
    for index, choice in seen.choices.items():
        right = expected.choices[index]
        for name in ("token_ids", "logprobs", "text"):
            mine, theirs = getattr(choice, name), getattr(right, name)
            if mine != theirs:
                where = first_difference(mine, theirs)
                found.append(f"choice {index}: {name} differ from {where} on (of {len(theirs)})")
        for name in ("calls", "finish"):
            mine, theirs = getattr(choice, name), getattr(right, name)
            if mine != theirs:
                found.append(f"choice {index}: {name} {mine}, not {theirs}")
    for name in ("kinds", "last_number", "final"):
        if getattr(seen, name) != getattr(expected, name):
            found.append(f"{name} differ")
    if seen.end != expected.end:
        found.append(f"ended as {seen.end}, not {expected.end}")
    cached = frozenset({CACHED})
    if without(seen.usage, cached) != without(expected.usage, cached):
        found.append(f"usage {seen.usage}, not {expected.usage}")
    return found


def first_difference(one: Any, other: Any) -> int:
    """The first index at which two sequences are not the same."""
    pairs = zip(one, other, strict=False)
    same = min(len(one), len(other))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), same)
