"""Cursor in the record of one completion: chunks as SSE frames, from behind any of them.

Sans-IO. The id of a frame is where its reader is then: of each choice how far, joined by periods.

    -      nothing was said of it
    17     its opening, and all that its first 17 output tokens complete
    17r    and the rest of the text, which its end completed
    17e    and its end

`usage` and `done` stand for all of that and the chunk with the usage, and for the last mark too. So
an id is a function of the tokens, however many came together and however choices interleave, and
what is behind one follows from the record: a cursor that begins there is given all before it first,
and says nothing of that.

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
# Of the ids that this server gives out.
POSITION_CHARACTERS_MAX = 256
USAGE_ID, DONE_ID = "usage", "done"
_PLACE = re.compile(r"-|([0-9]{1,9})([re]?)", re.ASCII)
_encode = msgspec.json.encode


class Answer(Protocol):
    """Makes the chunks of one reader: a `ChatAnswer`, `CompletionsAnswer` or `MessageAnswer`."""

    @property
    def framing(self) -> Framing:
        """How they become frames."""

    def for_reader(self) -> Self:
        """One that has said nothing yet."""

    def opening(self, index: int, prompt: AnsweredPrompt) -> JsonObject | None:
        """What comes before the text of a choice."""

    def around_text(self, index: int) -> list[bytes] | None:
        """The lines around text, and token ids, of a chunk, where that is all that differs."""

    def chunks(
        self, output: GenerationOutput, *, offset: int = 0, inexact_from: int | None = None
    ) -> list[JsonObject]:
        """The next piece of a choice: one chunk at most, and with an end the one that says it."""

    def usage_chunk(self, usage: Usage) -> JsonObject:
        """What comes before the last mark."""


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
        is_named = self._framing.has_ids and len(choices) <= NAMED_CHOICES_MAX
        self.has_ids = self.has_ids and is_named
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
        """Of the choices that the id says something of; nothing of one that is none."""
        places = [_PLACE.fullmatch(place) for place in position.split(".")]
        if len(places) != len(self._cursors):
            return []
        named = zip(self.record.choices, places, strict=True)
        return [(choice, int(at[1]), at[2]) for choice, at in named if at is not None and at[1]]

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
        for cursor, match in zip(self._cursors, found, strict=True):
            if match is None:
                raise _no_id()
            if match[1] is not None:
                self._skip(cursor, int(match[1]), match[2])
                if cursor.is_level:
                    self._fresh.pop(cursor.choice.index, None)

    def _skip(self, cursor: _ChoiceCursor, count: int, mark: str) -> None:
        """So much of a choice was said."""
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
        self._note_place(choice.index, f"{count}{mark}".encode())

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
        choice = cursor.choice
        begin, stop = cursor.count, len(choice.token_ids)
        if tokens_max is not None and stop - begin > tokens_max:
            stop = begin + tokens_max
        elif choice.finish_reason is not None:
            self._say_end(cursor, frames)
            return
        if stop == begin:
            return
        cursor.count = stop
        self._places[choice.index] = b"%d" % stop
        if cursor.around_text is None or choice.inexact_from is not None:
            piece = choice.piece(begin, stop, with_end=False)
            self._add(self._chunks(cursor, piece), frames)
            return
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
        cursor.stage, index = Stage.OPEN, cursor.choice.index
        self._unopened -= 1
        self._note_place(index, b"0")
        chunk = self.answer.opening(index, cursor.choice.prompt)
        if chunk is not None:
            self._add([chunk], frames)

    def _say_end(self, cursor: _ChoiceCursor, frames: list[bytes]) -> None:
        choice, count = cursor.choice, len(cursor.choice.token_ids)
        # Where the rest was said, what it is made of changes nothing: only the end is new.
        piece = choice.piece(cursor.count, count, with_end=True)
        cursor.count = count
        if cursor.stage is Stage.REST:
            piece.text = ""
        *rest, end = self._chunks(cursor, piece)
        if cursor.stage is not Stage.REST:
            self._note_place(choice.index, b"%dr" % count)
            self._add(rest, frames)
        self._note_place(choice.index, b"%de" % count)
        self._add([end], frames)
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
            line = f"id: {USAGE_ID}\n".encode() if self.has_ids else b""
            chunk = self.answer.usage_chunk(self.record.usage)
            frames.append(line + self._framing.frame(chunk))
        self._has_usage = True
        line = f"id: {DONE_ID}\n".encode() if self.has_ids else b""
        frames.append(line + self._framing.done)

    def _add(self, chunks: Iterable[JsonObject], frames: list[bytes]) -> None:
        for chunk in chunks:
            if self.continuous_usage:
                chunk["usage"] = usage_object(self._usage_so_far())
            frames.append(self._id_line() + self._framing.frame(chunk))

    def _usage_so_far(self) -> Usage:
        """What is cached is known at the end."""
        prompts = {id(each.prompt): len(each.prompt.token_ids) for each in self.record.choices}
        return Usage(sum(prompts.values()), sum(cursor.count for cursor in self._cursors))

    def _note_place(self, index: int, place: bytes) -> None:
        self._places[index] = place

    def _id_line(self) -> bytes:
        return b"id: %b\n" % b".".join(self._places) if self.has_ids else b""


def _no_id() -> ApiError:
    return bad_field("starting_after", "is not the id of an event of this stream")


def _beyond() -> ApiError:
    return bad_field("starting_after", "is beyond the last event")
