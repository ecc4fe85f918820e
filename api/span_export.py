"""Export of traces: spans go to an OpenTelemetry collector, as JSON over HTTP (OTLP).

A background task sends what has ended, every `PERIOD_S` while there is any. What cannot be
delivered is dropped and counted, and never delays a request. The SDK of OpenTelemetry is not used:
its exporter is a thread without an owner, and there is little for it to do here.
"""

import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import attrs
import msgspec
import trio

from .. import __version__
from ..nurseries.tasks.background import waiting_for
from ..nurseries.tasks.parking import Doorbell
from ..nurseries.tasks.service import open_service
from ..runtime.frontend.tracing import SPANS_MAX, Tracer, TraceSpan
from .counters import ApiCounters

logger = logging.getLogger(__name__)
# The most that a killed process takes along; pulled out of the air.
PERIOD_S = 1.0
# In one message, of some 300 bytes each: the SDK's figure.
BATCH_MAX = 512
POST_TIMEOUT_S = 5.0
# When the process ends in order, for what is left.
LAST_S = 1.0
_SERVER, _INTERNAL, _OK, _ERROR = 2, 1, 1, 2
_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")


def make_tracer(url: str, on_spans: Callable[[], None]) -> Tracer | None:
    """Make a tracer that draws ids from the operating system; None where no url takes spans."""
    return Tracer(random.SystemRandom(), on_spans) if url else None


@asynccontextmanager
async def open_span_export(
    tracer: Tracer | None,
    has_spans: Doorbell,
    url: str,
    environ: Mapping[str, str],
    *,
    counters: ApiCounters,
    last_s: float = LAST_S,
) -> AsyncIterator[None]:
    """Send spans there for the body of the block, and those that are left then; the tracer rings
    `has_spans`. Without a tracer nothing is done.

    Raises `ServiceEnded` if the task ends.
    """
    if tracer is None:
        yield
        return
    exporter = SpanExporter(tracer, has_spans, url, environ, counters, last_s)
    async with open_service(exporter.run, name="traces"):
        yield


@attrs.define(eq=False)
class SpanExporter:
    """Exporter of a home's spans. `environ` has the standard variables of OpenTelemetry."""

    tracer: Tracer
    has_spans: Doorbell
    url: str
    environ: Mapping[str, str]
    counters: ApiCounters
    last_s: float
    # Set when it was logged that the collector takes nothing.
    _is_failing: bool = attrs.field(default=False, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Background task `traces`; never returns unless cancelled, and sends the rest then."""
        from httpx2 import AsyncClient  # most servers have no use for it

        headers = {"content-type": "application/json", **headers_of(self.environ)}
        async with AsyncClient(headers=headers, timeout=POST_TIMEOUT_S, trust_env=False) as client:
            task_status.started()
            try:
                while True:
                    with waiting_for("spans that have ended"):
                        await self.has_spans.wait()
                    with waiting_for("more spans, to send them together"):
                        await trio.sleep(PERIOD_S)
                    await self._send_all(client)
            finally:
                with trio.move_on_after(self.last_s, shield=True):
                    await self._send_all(client)
                self.counters.spans_dropped += len(self.tracer.take(SPANS_MAX))

    async def _send_all(self, client: Any) -> None:
        self.has_spans.clear()
        while spans := self.tracer.take(BATCH_MAX):
            await self._send(client, spans)
        self.counters.spans_dropped += self.tracer.dropped
        self.tracer.dropped = 0

    async def _send(self, client: Any, spans: Sequence[TraceSpan]) -> None:
        from httpx2 import HTTPError

        now_ns = time.time_ns() - round(trio.current_time() * 1e9)
        body = msgspec.json.encode(message_of(spans, now_ns, resource_of(self.environ)))
        try:
            answer = await client.post(self.url, content=body)
            sent, fault = answer.is_success, f"it answered {answer.status_code}"
        except HTTPError as error:
            sent, fault = False, str(error) or type(error).__name__
        except trio.Cancelled:
            self.tracer.put_back(spans)  # a collector may have them twice, which is better than not
            raise
        self.counters.spans += len(spans) * sent
        self.counters.spans_dropped += len(spans) * (not sent)
        if not sent and not self._is_failing:
            logger.warning("the collector of traces at %s takes no spans: %s", self.url, fault)
        self._is_failing = not sent


def headers_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Headers to send along, by the standard variables: keys of collectors, mostly."""
    return {name.lower(): value for each in _HEADERS for name, value in _pairs(environ, each)}


def resource_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Identity of this service."""
    facts = {"service.name": "triolet", "service.version": __version__}
    facts |= dict(_pairs(environ, "OTEL_RESOURCE_ATTRIBUTES"))
    name = environ.get("OTEL_SERVICE_NAME")
    return facts | ({"service.name": name} if name else {})


def _pairs(environ: Mapping[str, str], name: str) -> list[tuple[str, str]]:
    """`a=b,c=d`, as the specification has lists; what is no pair is left out."""
    parts = [part.partition("=") for part in environ.get(name, "").split(",")]
    return [(key.strip(), unquote(value.strip())) for key, equals, value in parts if equals]


def message_of(spans: Sequence[TraceSpan], offset_ns: int, resource: Mapping[str, str]) -> Any:
    """The body of one POST, as OTLP spells it in JSON. Unix time is trio's and `offset_ns`."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [
                    {
                        "scope": {"name": "triolet", "version": __version__},
                        "spans": [_span(each, offset_ns) for each in spans],
                    }
                ],
            }
        ]
    }


def _span(span: TraceSpan, offset_ns: int) -> Any:
    ids, is_whole = span.ids, span.name == "llm_request"
    status = {"code": _ERROR, "message": span.error} if span.error else {"code": _OK}
    return {
        "traceId": ids.trace_id,
        "spanId": ids.span_id,
        "parentSpanId": ids.parent_id,
        "name": span.name,
        "kind": _SERVER if is_whole else _INTERNAL,
        # 64 bits are text in JSON.
        "startTimeUnixNano": str(round(span.begin_s * 1e9) + offset_ns),
        "endTimeUnixNano": str(round(span.end_s * 1e9) + offset_ns),
        "attributes": _attributes(span.attributes),
        "status": status,
    }


def _attributes(values: Mapping[str, str | int]) -> Any:
    return [
        {
            "key": key,
            "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value},
        }
        for key, value in values.items()
    ]
