"""Keepsakes: responses from before all faults, which must be as they were whatever dies since.

One that has ended, one that continues it, one from the background and one that was cancelled: each
is asked for again and again, and continued.
"""

from typing import Any

import attrs
import trio

from .clients import PATH, Lost, ask
from .history import Violation
from .load import BACKOFF_S, LAST_TOKENS, PROBES, SHORT_TOKENS

# A frontend that is about to take over what another had.
ASKED_MAX = 50
SERVER_ERRORS = range(500, 600)


@attrs.define(eq=False)
class Keepsakes:
    """Of one client of the server on `port`."""

    port: int
    key: str
    # Whether the same request has the same answer wherever it is computed.
    is_same_everywhere: bool = True
    # {response id: as it was}
    _objects: dict[str, Any] = attrs.field(factory=dict, init=False)
    _first: str = attrs.field(default="", init=False)
    _next_text: str = attrs.field(default="", init=False)

    async def make(self) -> None:
        """All of them, in the place of those that there were."""
        self._objects.clear()
        first = await self._create()
        self._first = first["id"]
        second = await self._create(previous_response_id=self._first)
        apart = await self._create(background=True)
        cut = await self._create(background=True, max_output_tokens=LAST_TOKENS)
        await self._ask("POST", f"{PATH}/{cut['id']}/cancel")
        for response_id in (self._first, second["id"], apart["id"], cut["id"]):
            found = await self._ended(response_id)
            self._objects[response_id] = found
        self._next_text = _text_of(second)

    async def check(self) -> list[Violation]:
        """What is not as it was."""
        found = []
        for response_id, wanted in self._objects.items():
            status, now = await self._ask("GET", f"{PATH}/{response_id}")
            if (status, now) != (200, wanted):
                evidence = f"{response_id} was {wanted}, and is {status}: {now}"
                found.append(Violation("I1", evidence))
        if self.is_same_everywhere:
            again = await self._create(previous_response_id=self._first)
            if _text_of(again) != self._next_text:
                evidence = f"{self._first} goes on as {again}, not as {self._next_text!r}"
                found.append(Violation("I1", evidence))
        return found

    async def _create(self, **fields: Any) -> Any:
        body = PROBES[0].body(**{"max_output_tokens": SHORT_TOKENS, **fields})
        return (await self._ask("POST", PATH, body))[1]

    async def _ended(self, response_id: str) -> Any:
        while True:
            _, found = await self._ask("GET", f"{PATH}/{response_id}")
            if found.get("status") not in ("queued", "in_progress"):
                return found
            await trio.sleep(BACKOFF_S)

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> tuple[int, Any]:
        """The answer; asked again while the frontend that it reaches dies, or there is none."""
        answer: tuple[int, Any] = (0, "no answer")
        for _ in range(ASKED_MAX):
            try:
                answer = await ask(self.port, method, path, key=self.key, body=body)
            except Lost as lost:
                answer = (0, str(lost))
            if answer[0] and answer[0] not in SERVER_ERRORS:
                break
            await trio.sleep(BACKOFF_S)
        return answer


def _text_of(response: Any) -> str:
    return "".join(
        part["text"] for item in response.get("output", ()) for part in item.get("content", ())
    )
