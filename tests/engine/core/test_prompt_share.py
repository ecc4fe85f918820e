"""Share of short prompts: a step has 8 tokens, of which a chunk of a long prompt leaves 2."""

import pytest

from triolet.engine.core.request import RequestStatus
from triolet.engine.messages import FinishReason

from .scheduler_bench import bench, has_status


def test_a_long_prompt_leaves_a_share_to_short_ones_behind_it() -> None:
    b = bench(kv_blocks=40)
    long, other_long = b.add(20), b.add(20)
    assert b.step().token_counts == [8], "nobody wants a share"
    short = b.add(2)
    step = b.step()
    assert (step.rows, step.token_counts) == ([long.row, short.row], [6, 2])
    assert short.output_count == 1
    assert has_status(other_long, RequestStatus.WAITING), "its turn is when the first is done"
    assert b.step().token_counts == [6, 1, 1]  # what is left fits into a step


def test_what_is_left_of_a_short_prompt_takes_from_the_share() -> None:
    b = bench(kv_blocks=40)
    long, short = b.add(22), b.add(5)
    assert b.step().token_counts == [6, 2]
    assert b.step().token_counts == [5, 3]  # one is its own, as anybody's behind
    assert (long.output_count, short.output_count) == (0, 1)


@pytest.mark.parametrize(("kv_blocks", "is_overtaken"), [(9, False), (10, True)])
def test_none_is_overtaken_where_there_is_no_room_for_both(
    kv_blocks: int, is_overtaken: bool
) -> None:
    b = bench(kv_blocks=kv_blocks)
    running = b.add(22)  # 6 blocks
    long, short = b.add(9), b.add(2)  # 3 and 1
    b.step()
    assert has_status(short, RequestStatus.RUNNING) is is_overtaken
    b.scheduler.end(running, FinishReason.ABORT)
    b.step()
    assert has_status(long, RequestStatus.RUNNING)


def test_a_stream_of_short_prompts_stops_no_long_one() -> None:
    b = bench(kv_blocks=100, max_num_seqs=8)
    longs = [b.add(20), b.add(20)]
    for _ in range(40):
        for _ in range(2):
            b.add(8, credit=1)
        b.step()
        for request in b.scheduler.running.copy():
            if not request.has_credit:
                b.scheduler.end(request, FinishReason.ABORT)
    assert all(request.output_count for request in longs)


def test_short_prompts_of_principals_take_turns() -> None:
    b = bench(kv_blocks=100, max_num_seqs=8)
    b.add(22)
    flood = [b.add(2, principal="flood") for _ in range(3)]
    other = b.add(2, principal="other")
    b.step()
    b.step()
    assert other.output_count
    assert not flood[1].output_count


def test_a_reader_of_a_short_prompt_ends_large_steps() -> None:
    b = bench(kv_blocks=40, large_step_tokens=16)
    b.add(22, merge_s=1.0)
    assert b.step().token_counts == [16]
    b = bench(kv_blocks=40, large_step_tokens=16)
    b.add(22, merge_s=1.0)
    b.add(2)
    assert b.step().token_counts == [6, 2]
