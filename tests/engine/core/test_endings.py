"""Requests leave by one door, and how they left is remembered where it is told."""

from triolet.engine.core.announcements import Announcements
from triolet.engine.core.endings import Endings
from triolet.engine.core.request import Request, make_request
from triolet.engine.core.request_store import RequestStore
from triolet.engine.core.scheduler import make_scheduler
from triolet.engine.core.statistics import Statistics
from triolet.engine.core.stop_check import Stop
from triolet.engine.errors import EngineDraining, OutputFailed
from triolet.engine.messages import FinishReason, RequestKey
from triolet.tests.engine.core.driver import add_request


def make() -> tuple[Endings, Request]:
    scheduler = make_scheduler(
        max_num_seqs=1, max_num_batched_tokens=4, kv_blocks=4, block_tokens=4
    )
    endings = Endings(scheduler, RequestStore(), Statistics(), Announcements())
    request = make_request("f0", add_request("a"), arrival=1, max_model_len=20)
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
    endings.refuse("f0", RequestKey("b", 1), EngineDraining(), [1, 2])
    [output] = endings.announcements.take()["f0"].outputs
    assert (output.first_index, output.token_ids, output.error_code) == (2, [], "engine_draining")
    assert endings.store.find_finished("f0", RequestKey("b", 1)) is not None
