"""Export of spans to a collector that the test serves, to one that refuses, and to none."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import h11
import msgspec
import pytest
import trio

from triolet.api.counters import ApiCounters
from triolet.api.settings import traces_url
from triolet.api.span_export import headers_of, open_span_export, resource_of
from triolet.nurseries.tasks.parking import Doorbell
from triolet.runtime.frontend.tracing import SPANS_MAX, TraceIds, Tracer, TraceSpan

IDS = TraceIds("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7")
DEADLINE_S = 60.0
ENVIRON = {
    "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Basic%20abc, x-team = blue,nonsense",
    "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test,service.name=other",
    "OTEL_SERVICE_NAME": "chat",
}


def span(
    name: str = "decode", *, error: str = "", attributes: dict[str, str | int] | None = None
) -> TraceSpan:
    begin_s = trio.current_time()
    return TraceSpan(
        ids=IDS,
        name=name,
        begin_s=begin_s,
        end_s=begin_s + 0.5,
        attributes=attributes or {},
        error=error,
    )


@attrs.define(eq=False)
class Collector:
    """Answers every POST with `status`, but the first ones that it is to leave unanswered."""

    status: int = 200
    unanswered: int = 0
    url: str = ""
    got: list[tuple[str, dict[str, str], Any]] = attrs.field(factory=list)
    _came: trio.Event = attrs.field(factory=trio.Event)

    async def serve(self, stream: trio.SocketStream) -> None:
        http = h11.Connection(h11.SERVER)
        async with stream:
            target, headers, body = "", dict[str, str](), b""
            while True:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    http.receive_data(await stream.receive_some(65536))
                elif isinstance(event, h11.Request):
                    target = event.target.decode()
                    headers = {name.decode(): value.decode() for name, value in event.headers}
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    self.got.append((target, headers, msgspec.json.decode(body)))
                    self._came.set()
                    self._came = trio.Event()
                    if self.unanswered:
                        self.unanswered -= 1
                        await trio.sleep_forever()
                    answer = h11.Response(
                        status_code=self.status,
                        headers=[("content-length", "2"), ("content-type", "application/json")],
                    )
                    data = http.send(answer), http.send(h11.Data(b"{}"))
                    await stream.send_all(b"".join(filter(None, data)))
                    http.send(h11.EndOfMessage())
                    http.start_next_cycle()
                    body = b""
                else:
                    return

    async def wait(self, count: int) -> None:
        while len(self.got) < count:
            await self._came.wait()


def names_of(message: Any) -> list[str]:
    return [each["name"] for each in message["resourceSpans"][0]["scopeSpans"][0]["spans"]]


@asynccontextmanager
async def open_collector(status: int = 200) -> AsyncIterator[Collector]:
    collector = Collector(status)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        collector.url = f"http://127.0.0.1:{port}/v1/traces"
        nursery.start_soon(trio.serve_listeners, collector.serve, [listener])
        yield collector
        nursery.cancel_scope.cancel("the test is over")


@pytest.mark.slow
async def test_spans_arrive_as_the_protocol_spells_them() -> None:
    bell, counters = Doorbell(), ApiCounters()
    tracer = Tracer(random.Random(1), bell.ring)
    with trio.fail_after(DEADLINE_S):
        async with open_collector() as collector:
            async with open_span_export(
                tracer, bell, collector.url, ENVIRON, counters=counters, last_s=DEADLINE_S
            ):
                tracer.put(span("queue"))
                tracer.put(span("death", error="engine 0 died", attributes={"a": 3, "b": "c"}))
                while counters.spans < 2:
                    await trio.lowlevel.checkpoint()
                tracer.put(span("llm_request"))
            await collector.wait(2)  # what was left at the end
    (target, headers, message), (_, _, last) = collector.got
    assert target == "/v1/traces"
    assert headers["content-type"] == "application/json"
    assert (headers["authorization"], headers["x-team"]) == ("Basic abc", "blue")
    (resource,) = message["resourceSpans"]
    named = {each["key"]: each["value"] for each in resource["resource"]["attributes"]}
    assert named["service.name"] == {"stringValue": "chat"}
    assert named["deployment.environment"] == {"stringValue": "test"}
    queue, death = resource["scopeSpans"][0]["spans"]
    assert (queue["traceId"], queue["spanId"], queue["parentSpanId"]) == attrs.astuple(IDS)
    took_ns = int(queue["endTimeUnixNano"]) - int(queue["startTimeUnixNano"])
    assert took_ns == pytest.approx(0.5e9, abs=1e6)
    assert (queue["kind"], queue["status"]) == (1, {"code": 1})
    assert death["status"] == {"code": 2, "message": "engine 0 died"}
    assert death["attributes"] == [
        {"key": "a", "value": {"intValue": "3"}},
        {"key": "b", "value": {"stringValue": "c"}},
    ]
    (whole,) = last["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert whole["kind"] == 2
    assert (counters.spans, counters.spans_dropped) == (3, 0)


@pytest.mark.slow
async def test_what_a_collector_refuses_is_counted_and_later_spans_are_sent() -> None:
    bell, counters = Doorbell(), ApiCounters()
    tracer = Tracer(random.Random(1), bell.ring)
    with trio.fail_after(DEADLINE_S):
        async with (
            open_collector(503) as collector,
            open_span_export(tracer, bell, collector.url, {}, counters=counters, last_s=DEADLINE_S),
        ):
            for _ in range(SPANS_MAX + 3):
                tracer.put(span())
            while counters.spans_dropped < SPANS_MAX:
                await trio.lowlevel.checkpoint()
            collector.status = 200
            tracer.put(span())
    assert (counters.spans, counters.spans_dropped) == (1, SPANS_MAX + 3)


async def test_without_a_collector_spans_are_counted_as_lost() -> None:
    bell, counters = Doorbell(), ApiCounters()
    tracer = Tracer(random.Random(1), bell.ring)
    with trio.fail_after(DEADLINE_S):
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/v1/traces"
        await listener.aclose()
        async with open_span_export(tracer, bell, url, {}, counters=counters, last_s=DEADLINE_S):
            tracer.put(span())
    assert (counters.spans, counters.spans_dropped) == (0, 1)


async def test_without_a_tracer_nothing_is_done() -> None:
    async with open_span_export(None, Doorbell(), "", {}, counters=ApiCounters()):
        pass


def test_the_address_follows_the_standard_variables() -> None:
    base, exact = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    assert traces_url("", {}) == ""
    assert traces_url("http://a:4318", {}) == "http://a:4318/v1/traces"
    assert traces_url("http://a:4318/v1/traces", {}) == "http://a:4318/v1/traces"
    assert traces_url("", {base: "http://b:4318/x/"}) == "http://b:4318/x/v1/traces"
    assert traces_url("", {base: "http://b", exact: "http://c/in"}) == "http://c/in"
    assert traces_url("http://a", {exact: "http://c/in"}) == "http://a/v1/traces"
    assert traces_url("http://a", {"OTEL_SDK_DISABLED": "TRUE"}) == ""


def test_headers_and_resource_are_the_environments() -> None:
    assert headers_of({}) == {}
    assert headers_of(ENVIRON) == {"authorization": "Basic abc", "x-team": "blue"}
    assert resource_of({})["service.name"] == "triolet"
    assert resource_of({"OTEL_RESOURCE_ATTRIBUTES": "service.name=o"})["service.name"] == "o"


@pytest.mark.slow
async def test_what_is_on_its_way_when_the_process_ends_is_sent_again() -> None:
    bell, counters = Doorbell(), ApiCounters()
    tracer = Tracer(random.Random(1), bell.ring)
    with trio.fail_after(DEADLINE_S):
        async with open_collector() as collector:
            collector.unanswered = 1
            async with open_span_export(
                tracer, bell, collector.url, {}, counters=counters, last_s=DEADLINE_S
            ):
                tracer.put(span("queue"))
                await collector.wait(1)
        assert [names_of(message) for _, _, message in collector.got] == [["queue"], ["queue"]]
    assert (counters.spans, counters.spans_dropped) == (1, 0)
