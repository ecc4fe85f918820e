"""Batch table: on an engine's progress page, the requests of the steps that are in flight.

Written before a step is handed over, so that the root can say of a death which requests were
computed. A place for each row names its request; a step lists its rows with their positions. Two
steps may be in flight: one of even and one of odd number. A half that is torn belongs to a step
that was not handed over.

Beside the steps stand the forms whose grammars are at work in the engine itself, one for each of
its threads that does so: what ends the engine meanwhile is that form's doing.
"""

import enum
import hashlib
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs

from ..nurseries.processes.progress_page import open_page_table
from .messages import AddRequest

_ROW = struct.Struct("=16sQ")  # content, attempt
_STEP = struct.Struct("=4Q")  # change begun, step number, rows, change ended
_WORD = struct.Struct("=Q")
_NO_WORD = _WORD.pack(0)
_CELL = struct.Struct("=2I")  # row, position
_FORM = struct.Struct("=16sQ")  # content, position; 0: none is at work
CONTENT_BYTES = 16
# Bytes of a prompt of embeddings that tell it from others; the whole may be 48 MiB.
EMBEDS_BYTES = 65_536


def content_hash(request: AddRequest) -> bytes:
    """Hash that knows a request when it is sent again: of its principal and its prompt."""
    ids = array("q", request.prompt_token_ids)
    digest = hashlib.blake2b(ids.tobytes(), digest_size=CONTENT_BYTES)
    digest.update(b"\0" + request.principal.encode() + b"\0")
    if request.prompt_embeds is not None:
        digest.update(bytes(request.prompt_embeds.data[:EMBEDS_BYTES]))
    return digest.digest()


def form_hash(request: AddRequest) -> bytes:
    """Name the form of a request's answer by whose it is and its text; empty without one."""
    form = request.sampling.structured_outputs
    if form is None:
        return b""
    text = f"{form.kind}\0{request.principal}\0{form.text}"
    return hashlib.blake2b(text.encode(), digest_size=CONTENT_BYTES).digest()


class GrammarThread(enum.IntEnum):
    """The threads of an engine in which grammars are at work, by their place in the table."""

    LOOP = 0  # makes masks and consumes tokens
    COMPILER = 1


def table_bytes(rows: int) -> int:
    """The size of a table for an engine with so many rows."""
    return _forms_at(rows) + len(GrammarThread) * _FORM.size


def _forms_at(rows: int) -> int:
    return rows * _ROW.size + 2 * (_STEP.size + rows * _CELL.size)


@attrs.frozen
class BatchRow:
    """Request of a step, and its count of tokens after the step."""

    content: bytes
    attempt: int
    position: int


@attrs.define(eq=False)
class BatchTable:
    """The writer's side; `memory` is the table alone, or None where there is none."""

    memory: memoryview | None
    rows: int
    _changes: int = attrs.field(default=0, init=False)

    def name_row(self, row: int, content: bytes, attempt: int) -> None:
        """This request has the row from the next step on."""
        if self.memory is not None:
            begin = row * _ROW.size
            self.memory[begin : begin + _ROW.size] = _ROW.pack(content, attempt)

    def write_step(self, number: int, rows: Sequence[int], positions: Sequence[int]) -> None:
        """Write the rows of the step that is about to be handed over."""
        if self.memory is None:
            return
        self._changes += 1
        memory, count, changes = self.memory, len(rows), self._changes
        head, cells = _places(self.rows, number)
        memory[head:cells] = _STEP.pack(changes, number, count, 0)
        places = struct.Struct(f"={count}I")
        memory[cells : cells + places.size] = places.pack(*rows)
        cells += 4 * self.rows
        memory[cells : cells + places.size] = places.pack(*positions)
        memory[head + 24 : head + 32] = _WORD.pack(changes)

    def end_step(self, number: int) -> None:
        """Clear the step, whose result has come: no death is blamed on it any more."""
        if self.memory is not None:
            head, cells = _places(self.rows, number)
            self.memory[head:cells] = bytes(_STEP.size)

    def clear(self) -> None:
        """No step is in flight."""
        self.end_step(0)
        self.end_step(1)

    def begin_grammar(self, thread: GrammarThread, content: bytes, position: int) -> None:
        """The grammar of this form is at work from now on, for a request with so many tokens."""
        if self.memory is not None:
            begin = _forms_at(self.rows) + thread * _FORM.size
            self.memory[begin : begin + _FORM.size] = _FORM.pack(content, position)

    def end_grammar(self, thread: GrammarThread) -> None:
        """No grammar is at work in this thread: nothing dies of one any more."""
        if self.memory is not None:
            end = _forms_at(self.rows) + (thread + 1) * _FORM.size
            self.memory[end - _WORD.size : end] = _NO_WORD


@contextmanager
def open_batch_table(page_fd: int | None, offset: int, rows: int) -> Iterator[BatchTable]:
    """The table that begins at `offset` of the page; one that keeps nothing without a page."""
    with open_page_table(page_fd, offset, table_bytes(rows)) as own:
        yield BatchTable(own, rows)


def read_batches(table: bytes, rows: int) -> list[list[BatchRow]]:
    """The steps that are whole, the older one first."""
    if len(table) < table_bytes(rows):
        return []
    found = []
    for half in (0, 1):
        head, cells = _places(rows, half)
        begun, number, count, ended = _STEP.unpack_from(table, head)
        if not begun or begun != ended or count > rows:
            continue
        places = struct.unpack_from(f"={count}I", table, cells)
        positions = struct.unpack_from(f"={count}I", table, cells + 4 * rows)
        batch = [
            BatchRow(content, attempt, position)
            for row, position in zip(places, positions, strict=True)
            if row < rows
            for content, attempt in [_ROW.unpack_from(table, row * _ROW.size)]
        ]
        found.append((number, batch))
    return [batch for _, batch in sorted(found, key=lambda each: each[0])]


def read_forms(table: bytes, rows: int) -> dict[bytes, int]:
    """{content of a form: tokens of its request}, of those whose grammars are at work."""
    if len(table) < table_bytes(rows):
        return {}
    begin = _forms_at(rows)
    places = range(begin, begin + len(GrammarThread) * _FORM.size, _FORM.size)
    found = [_FORM.unpack_from(table, place) for place in places]
    return {content: position for content, position in found if position}


def _places(rows: int, number: int) -> tuple[int, int]:
    """Offsets of the half of this step, and of its cells."""
    head = rows * _ROW.size + (number % 2) * (_STEP.size + rows * _CELL.size)
    return head, head + _STEP.size
