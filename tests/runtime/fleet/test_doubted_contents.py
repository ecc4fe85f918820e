"""Deaths of frontends with contents in hand: whose they are, and what they count for."""

import struct

from triolet.runtime.events import RequestRefused
from triolet.runtime.fleet.doubted_contents import DoubtedContents
from triolet.runtime.hands import TABLE_BYTES

from ..acting import Diary


def table(*contents: bytes) -> bytes:
    """What a frontend leaves that had these in hand."""
    places = b"".join(struct.pack("=16sQ", content, 1) for content in contents)
    return places.ljust(TABLE_BYTES, b"\0")


A, B = b"a" * 16, b"b" * 16


def test_a_death_with_nothing_in_hand_is_the_frontends_own() -> None:
    doubted = DoubtedContents(Diary())
    assert not doubted.handle_fault(0, 1, table())


def test_a_content_is_refused_after_two_deaths_and_its_company_goes_free() -> None:
    diary = Diary()
    doubted = DoubtedContents(diary)
    assert doubted.handle_fault(0, 1, table(A, B))
    assert sorted(doubted.snapshot().suspects) == [A, B]
    assert doubted.handle_fault(1, 2, table(A))
    assert doubted.snapshot().suspects == [B]
    assert list(doubted.snapshot().refused) == [A]
    (event,) = diary.of(RequestRefused)
    assert (event.child, event.content) == ("frontend 1", A.hex())
    assert doubted.handle_passed([B])
    assert doubted.snapshot().suspects == []
    assert not doubted.handle_passed([])
