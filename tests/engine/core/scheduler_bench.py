"""A scheduler with a worker that always samples token 1 and never stops."""

import attrs

from triolet.engine.core.request import Request, RequestStatus
from triolet.engine.core.scheduler import Scheduler
from triolet.engine.messages import FinishReason
from triolet.engine.step_messages import Step

from .driver import make_scheduler, new_request

MODEL_LEN = 24


@attrs.define(eq=False)
class Bench:
    """The scheduler, and how many requests came."""

    scheduler: Scheduler
    arrivals: int = 0

    def add(
        self,
        prompt: int,
        *,
        credit: int | None = None,
        merge_s: float = 0.0,
        principal: str = "",
    ) -> Request:
        self.arrivals += 1
        request = new_request(
            f"r{self.arrivals}",
            arrival=self.arrivals,
            prompt=prompt,
            credit=credit,
            max_model_len=MODEL_LEN,
            merge_s=merge_s,
            principal=principal,
        )
        self.scheduler.add(request)
        return request

    def step(self) -> Step:
        scheduled = self.scheduler.schedule()
        assert scheduled is not None
        self.scheduler.check_invariants()
        self.apply()
        return scheduled.step

    def apply(self) -> None:
        for request in self.scheduler.complete().sampling:
            if not request.is_finished:
                request.token_ids.append(1)
                if len(request.token_ids) >= request.length_max:
                    self.scheduler.end(request, FinishReason.LENGTH)
        self.scheduler.check_invariants()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()


def bench(
    *,
    kv_blocks: int = 12,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 8,
    large_step_tokens: int = 0,
) -> Bench:
    scheduler = make_scheduler(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_blocks=kv_blocks,
    )
    scheduler.large_step_tokens = large_step_tokens
    return Bench(scheduler)


def has_status(request: Request, status: RequestStatus) -> bool:
    """A call, so that the type checker does not believe the status to be constant."""
    return request.status is status
