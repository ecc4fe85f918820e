"""Counter slot: named counters and gauges of one process, in memory that its siblings sum.

Their parent makes a page of such slots, one for each place of a fleet (`counter_page`). A slot is
written by the process that has the place, its owner, and outlives it: the next owner goes on from
the counters that it finds, so that no sum ever goes backwards. Gauges say what there is now, and
count as long as the slot has an owner. A slot's words:

    layout    a hash of what the numbers mean; 0: there are none yet
    owner     pid of the process that has the place; 0: none has, or it is about to begin
    count     of the numbers that have a name
    numbers   `NUMBERS_MAX` of them
    names     as many, of `NAME_BYTES` each: JSON, then zeros

A name is whole before `count` takes it in, and then stays where it is; all else is changed by
single stores of aligned words. So a kill between any two stores, or a reader between them, finds
each number as it was or as it is to be, and under its own name. Slots of another layout are no part
of a sum; their next owner clears them.

Sans-IO: stores in the order in which they are to be made; `counter_page` makes them.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import attrs
import msgspec

# (`COUNTER` or `GAUGE`, then what tells it from all others), as ("counter", "answers", "GET", 200).
Name = tuple[str | int, ...]
Numbers = Mapping[Name, int]
# (index of a word, what to store there)
Store = tuple[int, int]

COUNTER, GAUGE = "counter", "gauge"
# Pulled out of the air; a frontend has some 300 numbers, and one for each route and status.
NUMBERS_MAX = 1280
NAME_BYTES = 96
WORD_BYTES = 8
_LAYOUT, OWNER, _COUNT = range(3)
_NUMBERS = 8  # behind a cache line
_NAMES = _NUMBERS + NUMBERS_MAX
_NAME_WORDS = NAME_BYTES // WORD_BYTES
SLOT_BYTES = WORD_BYTES * (_NAMES + NUMBERS_MAX * _NAME_WORDS)

_decoder = msgspec.json.Decoder(Name)


@attrs.define(eq=False)
class CounterSlot:
    """The owner's side: what to store in `words` so that the slot says these numbers.

    Numbers that find no room, or whose name is too long, are left out.
    """

    words: memoryview
    layout: int
    # {name: place of its number}
    _places: dict[Name, int] = attrs.field(factory=dict, init=False)
    # The counters of former owners.
    _base: dict[Name, int] = attrs.field(factory=dict, init=False)

    def begin(self, pid: int, numbers: Numbers) -> Iterator[Store]:
        """Take the slot over: the first thing that an owner does."""
        if self.words[_LAYOUT] != self.layout or _read(self.words) is None:
            yield _COUNT, 0
            yield _LAYOUT, self.layout
        found = _read(self.words) or {}
        self._places = {name: place for place, name in enumerate(found)}
        self._base = {name: number for name, number in found.items() if name[0] == COUNTER}
        gauges = {name: 0 for name in found if name[0] == GAUGE}
        yield from self.change(gauges | dict(numbers))
        yield OWNER, pid

    def change(self, numbers: Numbers) -> Iterator[Store]:
        """The owner has these numbers now; nothing is stored for those that are as they were."""
        for name, own in numbers.items():
            number = own + self._base.get(name, 0)
            place = self._places.get(name)
            if place is None:
                yield from self._add(name, number)
            elif self.words[_NUMBERS + place] != number:
                yield _NUMBERS + place, number

    def _add(self, name: Name, number: int) -> Iterator[Store]:
        place, encoded = len(self._places), msgspec.json.encode(name)
        if place == NUMBERS_MAX or len(encoded) > NAME_BYTES:
            return
        encoded = encoded.ljust(NAME_BYTES, b"\0")
        for word in range(_NAME_WORDS):
            part = encoded[word * WORD_BYTES : (word + 1) * WORD_BYTES]
            yield _NAMES + place * _NAME_WORDS + word, int.from_bytes(part, sys.byteorder)
        yield _NUMBERS + place, number
        self._places[name] = place
        yield _COUNT, place + 1

    def end(self) -> Iterator[Store]:
        """The owner leaves."""
        yield OWNER, 0


def sum_slots(slots: Iterable[memoryview], layout: int) -> Counter[Name]:
    """The numbers of all slots of this layout, added up by name."""
    total = Counter[Name]()
    for words in slots:
        if words[_LAYOUT] != layout:
            continue
        has_owner = words[OWNER] != 0
        found = _read(words)
        if words[_LAYOUT] != layout or found is None:
            continue  # another owner began to clear it while we copied, or one wrote over it
        for name, number in found.items():
            if has_owner or name[0] == COUNTER:
                total[name] += number
    return total


def _read(words: memoryview) -> dict[Name, int] | None:
    """The numbers by name; None where something else was written over them."""
    try:
        return _named(*_copy(words))
    except (msgspec.DecodeError, ValueError):
        return None


def _copy(words: memoryview) -> tuple[list[int], bytes]:
    """Copy the numbers that have a name, and the names."""
    count = words[_COUNT]
    numbers = words[_NUMBERS : _NUMBERS + count].tolist()
    return numbers, words[_NAMES : _NAMES + count * _NAME_WORDS].tobytes()


def _named(numbers: list[int], names: bytes) -> dict[Name, int]:
    """By name, in the order of their places."""
    return {
        _decoder.decode(names[place * NAME_BYTES : (place + 1) * NAME_BYTES].rstrip(b"\0")): number
        for place, number in enumerate(numbers)
    }
