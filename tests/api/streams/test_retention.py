"""What has ended is forgotten by its time, by number and by bytes, the oldest first."""

from triolet.api.streams.retention import Retention


def test_the_oldest_goes_where_there_is_no_room_and_each_at_its_time() -> None:
    forgotten: list[tuple[str, int, bool]] = []
    kept = Retention[int](3, 100, lambda *of: forgotten.append(of))
    for place, name in enumerate("abcd"):
        kept.keep(name, place, 10, until_s=10 + place)
        kept.forget_old(0)
    assert forgotten == [("a", 0, False)], "by number"
    kept.replace("b", 9, 90)
    kept.forget_old(0)
    assert forgotten[1:] == [("b", 9, False)], "by bytes"
    assert (kept.find("c", 11), kept.find("c", 12)) == (2, None)
    assert forgotten[2:] == [("c", 2, True)]
    kept.keep("d", 7, 20, until_s=99)
    assert (kept.items(), kept.size_bytes) == ([("d", 7)], 20)
    kept.drop("d")
    assert "d" not in kept
    kept.check_invariants()
    assert len(forgotten) == 3, "what is dropped is not forgotten of itself"
