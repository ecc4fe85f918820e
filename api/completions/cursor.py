"""Cursor in the record of one completion: chunks as SSE frames, from behind any of them.

Sans-IO. The id of a frame is where its reader is then: of each choice how far, joined by periods.

    -      nothing was said of it
    17     its opening, and all that its first 17 output tokens complete
    17r    and the rest of the text, which its end completed
    17e    and its end
    17+2   as 17, and two events of the chunk behind it, where a chunk may be several

`usage` and `done` stand for all of that and the chunk with the usage, and for the last mark too. So
an id is a function of the tokens, however many came together and however choices interleave, and
what is behind one follows from the record: a cursor that begins there is given all before it first,
and says nothing of that. Where a chunk may be several events, each token is a chunk of its own, so
that it is the same events again.

Frames have ids only where a reader may come back (`has_ids`): clients that take a whole frame for
`data:`, as `vllm bench serve` does, fail on any other line.
"""

import enum
import re
from collections.abc import Iterable
from typing import Protocol, Self

import attrs
import msgspec

from ...runtime.text.outputs import GenerationOutput, Usage
from ..errors import ApiError, bad_field
from ..openai.chat import AnsweredPrompt, usage_object
from ..openai.sse import Framing
from ..schema.fields import JsonObject
from .record import ChoiceRecord, CompletionRecord

# An id names each choice; frames of more choices than that have none, which would be most of them.
NAMED_CHOICES_MAX = 16
# Length of the ids that this server gives out.
POSITION_CHARACTERS_MAX = 256
USAGE_ID, DONE_ID = "usage", "done"
_PLACE = re.compile(r"(?:-|([0-9]{1,9})([re]?))(?:\+([1-9][0-9]{0,2}))?", re.ASCII)
_encode = msgspec.json.encode


class Answer(Protocol):
    """Makes the chunks of one reader: a `ChatAnswer`, `CompletionsAnswer` or `MessageAnswer`."""

    @property
    def framing(self) -> Framing:
        """How they become frames."""

    def for_reader(self) -> Self:
        """Copy for a reader, which has said nothing yet."""

    def opening(self, index: int, prompt: AnsweredPrompt) -> JsonObject | None:
        """Chunk before the text of a choice."""

    def around_text(self, index: int) -> list[bytes] | None:
        """The lines around text, and token ids, of a chunk, where that is all that differs."""

    def chunks(
        self, output: GenerationOutput, *, offset: int = 0, inexact_from: int | None = None
    ) -> list[JsonObject]:
        """The next piece of a choice: one chunk at most, and with an end the one that says it."""

    def usage_chunk(self, usage: Usage) -> JsonObject:
        """Chunk before the last mark."""


class Stage(enum.IntEnum):
    """How far a choice was said, beside its tokens."""

    UNOPENED = 0
    OPEN = 1
    REST = 2  # with the text that the end completed
    ENDED = 3


@attrs.define(eq=False)
class _ChoiceCursor:
    """In one choice: `count` tokens were said, and so many `characters`, its prompt's included."""

    choice: ChoiceRecord
    around_text: list[bytes] | None
    stage: Stage = Stage.UNOPENED
    count: int = 0
    characters: int = 0

    @property
    def is_level(self) -> bool:
        """Whether all there is was said."""
        if self.stage in (Stage.UNOPENED, Stage.ENDED):
            return self.stage is Stage.ENDED
        return self.choice.finish_reason is None and self.count == len(self.choice.token_ids)


@attrs.define(eq=False)
class CompletionCursor:
    """Takes what was added and not said. `has_ids`: frames have ids, if there are few choices."""

    record: CompletionRecord
    answer: Answer
    includes_usage: bool
    has_ids: bool = attrs.field(default=True, kw_only=True)
    # Every chunk has the usage so far, of all choices.
    continuous_usage: bool = attrs.field(default=False, kw_only=True)
    # Everything was taken.
    is_done: bool = attrs.field(default=False, init=False)
    _cursors: list[_ChoiceCursor] = attrs.field(init=False)
    # The choices with something to say, in turn; each once.
    _fresh: dict[int, None] = attrs.field(init=False)
    # How far each choice is, as its part of an id.
    _places: list[bytes] = attrs.field(init=False)
    # How many frames of the next chunk were said; of a sole choice.
    _said: int = attrs.field(default=0, init=False)
    # Choices whose opening, and whose end, was not said.
    _unopened: int = attrs.field(init=False)
    _open: int = attrs.field(init=False)
    _has_usage: bool = attrs.field(default=False, init=False)
    _framing: Framing = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        choices = self.record.choices
        self.answer = self.answer.for_reader()
        around = self.answer.around_text
        self._cursors = [
            _ChoiceCursor(each, None if self.continuous_usage else around(each.index))
            for each in choices
        ]
        for cursor in self._cursors:
            cursor.characters = len(cursor.choice.prompt.echoed)
        self._fresh = {choice.index: None for choice in choices if choice.is_open}
        self._places = [b"-"] * len(choices)
        self._framing = self.answer.framing
        self.has_ids = self.has_ids and len(choices) <= NAMED_CHOICES_MAX
        self._unopened = self._open = len(choices)

    def is_beyond(self, position: str) -> bool:
        """Whether the frame of this id may be yet to come."""
        if self.record.has_ended:
            return False
        return position in (USAGE_ID, DONE_ID) or any(
            count > len(choice.token_ids) or bool(mark and choice.finish_reason is None)
            for choice, count, mark in self._places_in(position)
        )

    def is_inexact(self, position: str) -> bool:
        """Whether engines of other numerics have computed something up to this frame."""
        return any(
            choice.inexact_from is not None and count > choice.inexact_from
            for choice, count, _ in self._places_in(position)
        )

    def _places_in(self, position: str) -> list[tuple[ChoiceRecord, int, str]]:
        """Places of the choices that an id names; none for an id that is none."""
        places = [_PLACE.fullmatch(place) for place in position.split(".")]
        if len(places) != len(self._cursors):
            return []
        named = zip(self.record.choices, places, strict=True)
        return [
            # A part of the next chunk is of the next token, or of the end.
            (choice, int(at[1]) + bool(at[3]), at[2])
            for choice, at in named
            if at is not None and at[1]
        ]

    def go_behind(self, position: str) -> None:
        """Begin behind the frame of this id. Raises `ApiError` if there was none."""
        if self.record.error is not None and not self._cursors:
            return
        if position in (USAGE_ID, DONE_ID):
            if self.record.usage is None:
                raise _beyond()
            self._fresh.clear()
            self._open, self._has_usage = 0, True
            self.is_done = position == DONE_ID
            return
        places = position.split(".")
        found = [_PLACE.fullmatch(place) for place in places]
        if len(places) != len(self._cursors):
            raise _no_id()
        no_mark = 2 if self._framing.is_split else 3
        for cursor, match in zip(self._cursors, found, strict=True):
            if match is None or match[no_mark] not in (None, "", "e"):
                raise _no_id()
            if match[1] is not None:
                self._skip(cursor, int(match[1]), match[2])
                if cursor.is_level:
                    self._fresh.pop(cursor.choice.index, None)
            if match[3] is not None:
                if not cursor.is_level:
                    self._said = int(match[3])
                elif self.record.error is None:
                    raise _beyond()

    def _skip(self, cursor: _ChoiceCursor, count: int, mark: str) -> None:
        """Skip what was said of a choice."""
        choice, there = cursor.choice, len(cursor.choice.token_ids)
        has_end = choice.finish_reason is not None
        if count > there or (mark and (count < there or not has_end)):
            if self.record.error is None:
                raise _beyond()
            count, mark = there, ""  # what was lost will not come
        stage = {"": Stage.OPEN, "r": Stage.REST, "e": Stage.ENDED}[mark]
        piece = choice.piece(0, count, with_end=stage >= Stage.REST)
        piece.logprobs = None  # of no effect on what follows
        self.answer.chunks(piece)
        cursor.stage, cursor.count, cursor.characters = (
            stage,
            count,
            cursor.characters + len(piece.text),
        )
        self._unopened -= 1
        if stage is Stage.ENDED:
            self._open -= 1
        self._places[choice.index] = f"{count}{mark}".encode()

    @property
    def is_ready(self) -> bool:
        """Whether `take` has something now, or is to note the end."""
        return bool(self._fresh) or (self.record.has_ended and not self.is_done)

    @property
    def position(self) -> str:
        """The id of the last frame, whether it has one or not."""
        if self.is_done or self._has_usage:
            return DONE_ID if self.is_done else USAGE_ID
        return b".".join(self._places).decode()

    def note(self, index: int) -> None:
        """There is more of this choice."""
        self._fresh[index] = None

    def take(self, tokens_max: int | None = None) -> bytes:
        """Frames of what was added since, of at most so many tokens of each choice."""
        frames: list[bytes] = []
        fresh = self._fresh
        if self._unopened:
            for index in fresh:
                self._say_opening(self._cursors[index], frames)
        for index in fresh:
            self._take_choice(self._cursors[index], frames, tokens_max)
        if tokens_max is None:
            fresh.clear()
        else:
            self._fresh = {index: None for index in fresh if not self._cursors[index].is_level}
        if self.record.has_ended and not (self._fresh or self.is_done):
            self._take_end(frames)
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _take_choice(
        self, cursor: _ChoiceCursor, frames: list[bytes], tokens_max: int | None
    ) -> None:
        stop, is_end = len(cursor.choice.token_ids), cursor.choice.finish_reason is not None
        if tokens_max is not None and stop - cursor.count > tokens_max:
            stop, is_end = cursor.count + tokens_max, False
        if self.has_ids and self._framing.is_split:
            for each in range(cursor.count + 1, stop + 1):
                self._say_tokens(cursor, each, frames)
        if is_end:
            self._say_end(cursor, frames)
        elif cursor.count < stop:
            self._say_tokens(cursor, stop, frames)

    def _say_tokens(self, cursor: _ChoiceCursor, stop: int, frames: list[bytes]) -> None:
        """At least one more, up to this one."""
        choice, begin = cursor.choice, cursor.count
        cursor.count = stop
        place = b"%d" % stop
        if cursor.around_text is None or choice.inexact_from is not None:
            piece = choice.piece(begin, stop, with_end=False)
            self._add(cursor, place, self._chunks(cursor, piece), frames)
            return
        self._places[choice.index] = place
        text = choice.texts[begin] if stop - begin == 1 else choice.text(begin, stop)
        cursor.characters += len(text)
        if len(cursor.around_text) > 2:
            head, between, tail = cursor.around_text
            ids = _encode(choice.token_ids[begin:stop])
            lines = b"%b%b%b%b%b" % (head, _encode(text), between, ids, tail)
        elif text:
            head, tail = cursor.around_text
            lines = b"%b%b%b" % (head, _encode(text), tail)
        else:
            return
        frames.append(b"%b%b\n\n" % (self._id_line(), lines))

    def _say_opening(self, cursor: _ChoiceCursor, frames: list[bytes]) -> None:
        if cursor.stage is not Stage.UNOPENED:
            return
        cursor.stage = Stage.OPEN
        self._unopened -= 1
        chunk = self.answer.opening(cursor.choice.index, cursor.choice.prompt)
        self._add(cursor, b"0", [] if chunk is None else [chunk], frames)

    def _say_end(self, cursor: _ChoiceCursor, frames: list[bytes]) -> None:
        choice, count = cursor.choice, len(cursor.choice.token_ids)
        # The text's parts change nothing where the rest was said: only the end is new.
        piece = choice.piece(cursor.count, count, with_end=True)
        cursor.count = count
        if cursor.stage is Stage.REST:
            piece.text = ""
        *rest, end = self._chunks(cursor, piece)
        if rest and cursor.stage is not Stage.REST:
            self._add(cursor, b"%dr" % count, rest, frames)
        self._add(cursor, b"%de" % count, [end], frames)
        cursor.stage = Stage.ENDED
        self._open -= 1

    def _chunks(self, cursor: _ChoiceCursor, piece: GenerationOutput) -> list[JsonObject]:
        inexact_from, begin = cursor.choice.inexact_from, piece.token_count - len(piece.token_ids)
        if inexact_from is not None and not begin <= inexact_from < piece.token_count:
            inexact_from = None
        offset = cursor.characters
        cursor.characters += len(piece.text)
        return self.answer.chunks(piece, offset=offset, inexact_from=inexact_from)

    def _take_end(self, frames: list[bytes]) -> None:
        self.is_done = True
        if self.record.error is not None:
            frames.append(self._framing.error(self.record.error))
            return
        assert self.record.usage is not None
        assert not self._open
        if self.includes_usage and not self._has_usage:
            (frame,) = self._framing.frames(self.answer.usage_chunk(self.record.usage))
            frames.append(self._id_line(USAGE_ID) + frame)
        self._has_usage = True
        frames.append(self._id_line(DONE_ID) + self._framing.done)

    def _add(
        self,
        cursor: _ChoiceCursor,
        place: bytes,
        chunks: Iterable[JsonObject],
        frames: list[bytes],
    ) -> None:
        """Say chunks, one at most, with which a choice comes to this place."""
        index = cursor.choice.index
        for chunk in chunks:
            if self.continuous_usage:
                chunk["usage"] = usage_object(self._usage_so_far())
            made, before = self._framing.frames(chunk), self._places[index]
            for number, frame in enumerate(made[self._said :], self._said + 1):
                self._places[index] = place if number == len(made) else b"%b+%d" % (before, number)
                frames.append(self._id_line() + frame)
            self._said = 0
        self._places[index] = place

    def _usage_so_far(self) -> Usage:
        """Usage so far; what is cached is known at the end."""
        prompts = {id(each.prompt): len(each.prompt.token_ids) for each in self.record.choices}
        return Usage(sum(prompts.values()), sum(cursor.count for cursor in self._cursors))

    def _id_line(self, name: str = "") -> bytes:
        """Id of the reader's place, unless the line has a name."""
        if not self.has_ids:
            return b""
        return b"id: %b\n" % (name.encode() or b".".join(self._places))


def _no_id() -> ApiError:
    return bad_field("starting_after", "is not the id of an event of this stream")


def _beyond() -> ApiError:
    return bad_field("starting_after", "is beyond the last event")
