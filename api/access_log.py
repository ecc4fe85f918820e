"""Access log: one line for each request when it has ended, over HTTP or in a lane of a WebSocket.

A line says what was asked, the status, and how long it took; of a generation also its id, tokens,
the time to the first one, why it ended, and whether it outlived an engine or a frontend. What asks
for the state of the server (`/health`, `/metrics`, …) and files of pages are logged at debug, and
so is a stream's part in a process that dies: its successor writes the line.
"""

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self
from urllib.parse import quote

import attrs

from ..runtime.frontend.generation import GenerationFacts

logger = logging.getLogger(__name__)
# nginx's word for a client that left before there was an answer.
CLIENT_LEFT = 499
# How many characters of a path are shown.
PATH_CHARACTERS_MAX = 200
# Status of a server without work, for those who look after it.
_UNAVAILABLE = 503


@attrs.frozen(kw_only=True)
class Generated:
    """Facts of a generation so far; `end` says why it ended, "" before that."""

    id: str
    end: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    first_token_s: float | None = None
    # How often it went on at another engine, as its own was gone.
    replays: int = 0
    # When it was admitted, by trio's clock, if that was in a life of this frontend before.
    admitted_at: float = math.inf

    @classmethod
    def of(
        cls,
        id: str,
        end: str,
        facts: Sequence[GenerationFacts],
        admitted_at: float = math.inf,
    ) -> Self:
        """Sum of these requests' facts."""
        if not facts:
            return cls(id=id, end=end, admitted_at=admitted_at)
        times = [each.first_token_s for each in facts if each.first_token_s is not None]
        return cls(
            id=id,
            end=end,
            prompt_tokens=sum(each.usage.prompt_tokens for each in facts),
            output_tokens=sum(each.usage.output_tokens for each in facts),
            cached_tokens=sum(each.usage.cached_tokens for each in facts),
            first_token_s=min(times, default=None),
            replays=max(each.replays for each in facts),
            admitted_at=admitted_at,
        )

    def fields(self) -> dict[str, object]:
        """Fields that are known, by name."""
        first_token_s = None if self.first_token_s is None else round(self.first_token_s, 4)
        found = {
            "id": self.id,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens or None,
            "output_tokens": self.output_tokens,
            "first_token_s": first_token_s,
            "end": self.end or None,
            "replays": self.replays or None,
        }
        return {name: value for name, value in found.items() if value is not None}


@attrs.define(eq=False)
class AccessEntry:
    """Notes on a request while it is answered."""

    began_at: float = 0.0
    # Logged at debug, unless it fails.
    is_quiet: bool = False
    # Facts of the generation, if the request has one.
    generation: Callable[[], Generated] | None = None
    # The code of the error that it was answered by.
    error: str = ""
    # A life of this frontend before has begun it.
    is_taken_over: bool = attrs.field(default=False, kw_only=True)

    def note_id(self, generation_id: str) -> None:
        """Note the id of the generation that is made, or read, of which no more is said here."""
        self.generation = partial(Generated, id=generation_id)

    def fields(self) -> tuple[dict[str, object], float]:
        """Fields beside the status, and when the request began."""
        generated = None if self.generation is None else self.generation()
        fields = {} if generated is None else generated.fields()
        began_at = self.began_at
        if self.error and "end" not in fields:
            fields["end"] = self.error
        if self.is_taken_over:
            fields["taken_over"] = True
            began_at = min(began_at, math.inf if generated is None else generated.admitted_at)
        return fields, began_at


# Method and path.
Asked = tuple[str, str]


@attrs.frozen
class AccessLog:
    """Writes the lines. With `is_on` false there are none."""

    is_on: bool = True

    def write(
        self, entry: AccessEntry, asked: Asked, status: int, now: float, **more: str | None
    ) -> None:
        """Write that a request has ended; `more` are further fields, without empty ones."""
        method, path = asked
        is_well = status < 400 or status == _UNAVAILABLE
        level = logging.DEBUG if entry.is_quiet and is_well else logging.INFO
        if not (self.is_on and logger.isEnabledFor(level)):
            return
        path = path[:PATH_CHARACTERS_MAX]
        if " " in path or not path.isprintable():
            path = quote(path, errors="replace")
        fields, began_at = entry.fields()
        fields.update((name, value) for name, value in more.items() if value and name not in fields)
        duration_s = round(now - began_at, 4)
        facts = {"method": method, "path": path, "status": status, "duration_s": duration_s}
        extra = {"facts": facts, **fields}
        logger.log(level, "%s %s %d %.3f s", method, path, status, duration_s, extra=extra)
