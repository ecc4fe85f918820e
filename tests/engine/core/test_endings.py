"""Stop rules in order, and how requests that ended are remembered."""

import pytest

from triolet.engine.core.endings import Endings, Stop, check_stop
from triolet.engine.core.request import Request, make_request
from triolet.engine.core.request_store import RequestStore
from triolet.engine.core.statistics import Statistics
from triolet.engine.errors import EngineDraining, OutputFailed
from triolet.engine.messages import AddRequest, FinishReason, RequestKey
from triolet.engine.sampling_params import SamplingParams
from triolet.tests.engine.core.driver import make_scheduler, new_request


def make() -> tuple[Endings, Request]:
    scheduler = make_scheduler(
        max_num_seqs=1, max_num_batched_tokens=4, kv_blocks=4, block_tokens=4
    )
    endings = Endings(scheduler, RequestStore(), Statistics())
    request = new_request()
    scheduler.add(request)
    endings.store.insert(request)
    return endings, request


def test_a_finished_request_is_remembered() -> None:
    endings, request = make()
    request.token_ids.append(9)
    record = endings.finish(request, Stop(FinishReason.STOP, 9))
    assert endings.store.find_finished("f0", RequestKey("a", 1)) is record
    assert (record.output_token_ids, record.stop_token_id, record.error) == ([9], 9, "")
    assert request.is_finished
    assert endings.store.live_count() == len(endings.scheduler.waiting) == 0
    assert endings.statistics.requests_finished == 1


def test_a_failed_request_says_why() -> None:
    endings, request = make()
    record = endings.fail(request, OutputFailed("no token fits"))
    assert record.finish_reason is FinishReason.ERROR
    assert record.error_code == OutputFailed.code
    assert "no token fits" in record.error


def test_an_aborted_request_is_forgotten() -> None:
    endings, request = make()
    endings.abort(request)
    assert endings.store.find_finished("f0", RequestKey("a", 1)) is None
    assert (endings.store.live_count(), endings.statistics.requests_aborted) == (0, 1)


def test_a_refused_request_gets_an_error_behind_its_replayed_tokens() -> None:
    endings, _ = make()
    record = endings.refuse("f0", RequestKey("b", 1), EngineDraining(), [1, 2])
    output = record.output_from(2)
    assert (output.first_index, output.token_ids, output.error_code) == (2, [], "engine_draining")
    assert endings.store.find_finished("f0", RequestKey("b", 1)) is record


END = Stop(FinishReason.STOP)
LENGTH = Stop(FinishReason.LENGTH)


def stop_of(
    output: list[int],
    *,
    prompt: tuple[int, ...] = (1, 2),
    max_tokens: int | None = 5,
    min_tokens: int = 0,
    stop_token_ids: tuple[int, ...] = (7,),
    ignore_eos: bool = False,
) -> Stop | None:
    add = AddRequest(
        request_id="a",
        attempt=1,
        prompt_token_ids=list(prompt),
        output_token_ids=output,
        eos_token_ids=[8, 9],
        sampling=SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_token_ids=stop_token_ids,
            ignore_eos=ignore_eos,
        ),
    )
    return check_stop(make_request("f0", add, arrival=1, max_model_len=10))


@pytest.mark.parametrize(
    ("output", "stop"),
    [
        ([], None),
        ([3], None),
        ([8], END),
        ([3, 9], END),
        ([7], Stop(FinishReason.STOP, 7)),
        ([3] * 4, None),
        ([3] * 5, LENGTH),
        ([3] * 4 + [8], END),
        ([3] * 4 + [7], Stop(FinishReason.STOP, 7)),
    ],
)
def test_rules_in_order(output: list[int], stop: Stop | None) -> None:
    assert stop_of(output) == stop


def test_end_of_sequence_comes_before_stop_tokens() -> None:
    assert stop_of([8], stop_token_ids=(8,)) == END
    assert stop_of([8], stop_token_ids=(8,), ignore_eos=True) == Stop(FinishReason.STOP, 8)


def test_ignored_end_of_sequence_goes_on_to_the_length() -> None:
    assert stop_of([8, 8], ignore_eos=True) is None
    assert stop_of([8] * 5, ignore_eos=True) == LENGTH


def test_prompt_does_not_stop() -> None:
    assert stop_of([], prompt=(1, 8)) is None


def test_below_min_tokens_only_length_counts() -> None:
    assert stop_of([8], min_tokens=2) is None
    assert stop_of([7], min_tokens=2) is None
    assert stop_of([3, 8], min_tokens=2) == END
    assert stop_of([3] * 8, min_tokens=9, max_tokens=None) == LENGTH


def test_model_length_is_the_bound_without_max_tokens() -> None:
    assert stop_of([3] * 7, max_tokens=None) is None
    assert stop_of([3] * 8, max_tokens=None) == LENGTH
