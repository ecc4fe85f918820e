"""What no step brings: put, told once, dropped; events only to those that wait."""

from triolet.engine.core.announcements import Announcements
from triolet.engine.core.request import Request, make_request
from triolet.engine.core.scheduler import make_scheduler
from triolet.engine.messages import AddRequest, FinishReason, RequestEventKind
from triolet.engine.sampling_params import SamplingParams


def make(name: str, arrival: int) -> Request:
    add = AddRequest(
        request_id=name,
        attempt=1,
        prompt_token_ids=[1],
        sampling=SamplingParams(seed=1),
        events=True,
    )
    return make_request("f0", add, arrival=arrival, max_model_len=10)


def test_who_waits_is_told_its_place_and_who_is_scheduled_that() -> None:
    scheduler = make_scheduler(
        max_num_seqs=1, max_num_batched_tokens=4, kv_blocks=4, block_tokens=4
    )
    announcements = Announcements()
    requests = [make("a", 1), make("b", 2), make("c", 3)]
    for request in requests:
        scheduler.add(request)
        announcements.note_arrival(request)
    scheduler.schedule()
    scheduler.end(requests[1], FinishReason.ABORT)
    announcements.put_events(scheduler)
    [outputs] = [news.outputs for news in announcements.take().values()]
    told = [(o.request_id, event.kind, event.detail) for o in outputs for event in o.events]
    assert told == [("c", RequestEventKind.QUEUED, 0), ("a", RequestEventKind.SCHEDULED, 0)]
    announcements.put_events(scheduler)
    assert announcements.take() == {}


def test_what_is_dropped_is_not_told() -> None:
    announcements = Announcements()
    request = make("a", 1)
    scheduler = make_scheduler(
        max_num_seqs=1, max_num_batched_tokens=4, kv_blocks=4, block_tokens=4
    )
    scheduler.add(request)
    announcements.note_arrival(request)
    announcements.put_events(scheduler)
    announcements.drop("f0")
    announcements.drop("f1")
    assert announcements.take() == {}
