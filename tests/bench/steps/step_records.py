"""Made-up records of two steps that overlap, in microseconds for the eye."""

from triolet.engine.step_recorder import Span, SpanRecord


def span(process: str, kind: Span, step: int, begin_us: int, end_us: int) -> SpanRecord:
    return SpanRecord(process, kind, step, begin_us * 1000, end_us * 1000)


def two_steps() -> list[SpanRecord]:
    """The worker computes from 10 to 110 and from 120 to 220; half of the engine's work hides."""
    return [
        span("engine-7", Span.SCHEDULE, 1, 0, 6),
        span("engine-7", Span.SUBMIT, 1, 6, 10),
        span("worker-8", Span.READ, 1, 0, 10),
        span("worker-8", Span.COMPUTE, 1, 10, 110),
        span("worker-8", Span.SAMPLE, 1, 100, 110),
        span("engine-7", Span.SCHEDULE, 2, 12, 18),
        span("engine-7", Span.SUBMIT, 2, 18, 22),
        span("engine-7", Span.WAIT, 1, 22, 112),
        span("worker-8", Span.ANSWER, 1, 110, 112),
        span("worker-8", Span.COMPUTE, 2, 120, 220),
    ]
