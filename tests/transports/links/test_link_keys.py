"""Keys, and which ranks may come by one."""

import pytest

from triolet.transports.links.link_keys import KEY_BYTES, Guests, LinkKeys


def test_a_secret_is_not_shown() -> None:
    shown = repr(LinkKeys(b"p" * KEY_BYTES, b"s" * KEY_BYTES))
    assert "pppp" in shown
    assert "ssss" not in shown


@pytest.mark.parametrize("sizes", [(KEY_BYTES - 1, KEY_BYTES), (KEY_BYTES, 0)])
def test_a_key_of_another_size_is_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="instead of 32"):
        LinkKeys(bytes(sizes[0]), bytes(sizes[1]))


def test_a_key_speaks_for_its_ranks_alone() -> None:
    guests = Guests()
    assert not guests.let_in(b"")
    given = {b"some": frozenset({1, 2}), b"any": None}
    guests.allow(given)
    given.clear()
    assert guests.let_in(b"some")
    assert guests.refusals == 1
    assert [guests.may_come_as(b"some", rank) for rank in (0, 1, 2)] == [False, True, True]
    assert guests.may_come_as(b"any", 7)
    assert not guests.may_come_as(b"", 1)
    guests.allow({b"any": None})
    assert not guests.let_in(b"some")
    assert not guests.may_come_as(b"some", 1)
