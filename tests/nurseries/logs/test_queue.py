"""Order is kept, the bound holds, and what matters least goes first."""

import hypothesis.strategies as st
from hypothesis import given

from triolet.nurseries.logs.queue import LogQueue

DEBUG, INFO, ERROR = 10, 20, 40


def test_lines_come_in_order_over_all_levels() -> None:
    queue = LogQueue(100)
    for level, line in ((INFO, b"a\n"), (DEBUG, b"b\n"), (INFO, b"c\n"), (ERROR, b"d\n")):
        queue.put(level, line)
    assert queue.take(4) == b"a\nb\n"
    assert queue.take(1) == b"c\n", "at least one, whole"
    assert queue.take(100) == b"d\n"
    assert queue.take(100) == b""
    assert not queue


def test_the_least_important_goes_first_and_of_it_the_oldest() -> None:
    queue = LogQueue(8)
    for level, line in ((DEBUG, b"1\n"), (INFO, b"2\n"), (DEBUG, b"3\n"), (ERROR, b"4\n")):
        queue.put(level, line)
    queue.put(INFO, b"5\n")
    queue.put(INFO, b"6\n")
    queue.put(ERROR, b"7\n")
    assert queue.take(100) == b"4\n5\n6\n7\n"
    assert queue.dropped_total == 3


def test_a_line_that_matters_least_is_itself_dropped() -> None:
    queue = LogQueue(4)
    queue.put(ERROR, b"12\n")
    queue.put(DEBUG, b"x\n")
    assert queue.take(100) == b"12\n"
    queue.put(ERROR, b"too long\n")
    assert not queue
    assert queue.dropped_total == 2


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from([DEBUG, INFO, ERROR]), st.binary(max_size=12)),
            st.integers(1, 30),
        )
    )
)
def test_every_line_is_taken_once_in_order_or_counted(steps: list[tuple[int, bytes] | int]) -> None:
    queue = LogQueue(40)
    put: list[bytes] = []
    taken: list[bytes] = []
    for step in steps:
        if isinstance(step, int):
            taken += [line + b"\n" for line in queue.take(step).split(b"\n")[:-1]]
        else:
            level, content = step
            line = b"%d %s\n" % (len(put), content.replace(b"\n", b""))
            put.append(line)
            queue.put(level, line)
        queue.check_invariants()
    taken += [line + b"\n" for line in queue.take(1000).split(b"\n")[:-1]]
    assert len(taken) + queue.dropped_total == len(put)
    numbers = [int(line.split()[0]) for line in taken]
    assert numbers == sorted(set(numbers))
