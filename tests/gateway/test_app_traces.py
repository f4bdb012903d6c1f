"""Traces through a whole gateway: to the engine, into the log, and to a collector that speaks OTLP (F1)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from app_scene import LOOPS, SIZES, Scene, chat, first_event, run, scene

from headworks.testing.fake.settings import FakeSettings
from headworks.testing.fake_engine import FakeEngine

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"traceparent: 00-{TRACE}-{SPAN}-01"
both_loops = pytest.mark.parametrize("loop", LOOPS)


class Listening(FakeEngine):
    """A fake engine that remembers the trace of each request."""

    def __init__(self) -> None:
        super().__init__(FakeSettings(engine=SIZES, context_tokens=2048))
        self.traces: deque[tuple[str | None, str | None]] = deque(maxlen=100)

    def handle(self, request: Any, connection: Any) -> None:
        if request.method == "POST":
            self.traces.append((request.headers.get("traceparent"), request.headers.get("tracestate")))
        super().handle(request, connection)


@both_loops
def test_F1_a_trace_is_passed_on_to_the_engine_and_explains_its_request(loop: str) -> None:
    async def steps() -> None:
        engine = Listening()
        async with scene(engine) as s:
            asked = chat(PARENT, "tracestate: congo=t61rcWkgMzE", "Idempotency-Key: k1")
            assert (await s.ask(asked)).status == 200
            assert list(engine.traces) == [(f"00-{TRACE}-{SPAN}-01", "congo=t61rcWkgMzE")]
            found = await s.app.explanations.of(TRACE)
            assert found["traces"] == [TRACE] and found["records"][0]["record"]["key"][1] == "k1"
            by_key = await s.app.explanations.of("k1")
            assert by_key["story"][-1] == f"It belongs to the trace {TRACE}."
            assert by_key["records"] == found["records"]

    run(loop, steps())


def test_F1_what_cannot_be_read_is_dropped_and_the_request_served() -> None:
    async def steps() -> None:
        engine = Listening()
        async with scene(engine) as s:
            for wrong in (f"00-{TRACE.upper()}-{SPAN}-01", f"ff-{TRACE}-{SPAN}-01", "nothing"):
                assert (await s.ask(chat(f"traceparent: {wrong}", "tracestate: a=1"))).status == 200
            assert (await s.ask(chat())).status == 200
            assert list(engine.traces) == [(None, None)] * 4
            assert s.everything("name") == []

    run("uvloop", steps())


def test_F1_a_trace_of_several_requests_explains_them_all() -> None:
    async def steps() -> None:
        async with scene() as s:
            for key in ("k1", "k2"):
                assert (await s.ask(chat(PARENT, f"Idempotency-Key: {key}"))).status == 200
            found = await s.app.explanations.of(TRACE)
            assert {line["record"]["key"][1] for line in found["records"]} == {"k1", "k2"}

    run("uvloop", steps())


def test_F1_without_a_collector_nothing_of_the_sdk_is_loaded() -> None:
    code = "import sys, headworks.gateway.app; print(any(name.startswith('opentelemetry') for name in sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert said.stdout == "False\n", said.stderr


# a collector


class Collector:
    """Takes OTLP over HTTP, as a collector does."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.metrics: dict[str, Any] = {}
        self.bodies: list[bytes] = []
        self.takes = True
        self.heard = threading.Event()
        self.url = ""

    def take(self, path: str, body: bytes) -> int:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.bodies.append(body)
        if not self.takes:
            return 400
        if path == "/v1/traces":
            for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append({one.key: one.value.string_value for one in of_resource.resource.attributes})
                self.spans += [span for scope in of_resource.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    self.metrics |= {metric.name: metric for metric in scope.metrics}
        self.heard.set()
        return 200

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


@contextmanager
def collector() -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.sdk")
    made = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(made.take(self.path, body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    found = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        found[one.key] = getattr(one.value, kind)
    return found


async def flushed(s: Scene) -> None:
    assert s.app.telemetry is not None
    await asyncio.to_thread(s.app.telemetry.flush)


def test_F1_a_request_is_a_span_in_its_clients_trace_and_the_engines_parent() -> None:
    async def steps(there: Collector) -> None:
        engine = Listening()
        async with scene(engine, telemetry={"otlp_url": there.url, "traces_ratio": 0}) as s:
            secret = "a very private question"
            asked = chat(PARENT, "tracestate: a=1", messages=[{"role": "user", "content": secret}], tokens=12)
            assert (await s.ask(asked)).status == 200
            assert (await s.ask(chat())).status == 200, "of no trace, and the ratio is nothing"
            await flushed(s)
            (own,) = there.named("chat tiny")
            (queued,), (sent,) = there.named("queue"), there.named("engine")
            assert {span.trace_id.hex() for span in there.spans} == {TRACE}
            assert own.parent_span_id.hex() == SPAN and own.trace_state == "a=1"
            assert queued.parent_span_id == sent.parent_span_id == own.span_id
            assert (own.kind, sent.kind) == (2, 3), "server and client"
            assert engine.traces[0] == (f"00-{TRACE}-{sent.span_id.hex()}-01", "a=1")
            second = engine.traces[1][0]
            assert second is not None and second.endswith("-00") and TRACE not in second
            assert own.start_time_unix_nano <= queued.end_time_unix_nano <= sent.end_time_unix_nano <= own.end_time_unix_nano
            found = attributes(own)
            assert found["gen_ai.operation.name"] == "chat" and found["gen_ai.request.model"] == "tiny"
            assert (found["gen_ai.usage.output_tokens"], found["headworks.outcome"]) == (12, "completed")
            assert (found["headworks.tenant"], found["headworks.evidence"]) == ("anonymous", "E1")
            assert attributes(sent)["headworks.replica"] == "llama/0"
            assert there.resources[0]["service.name"] == "headworks"
            assert not any(secret.encode() in body for body in there.bodies)

    with collector() as there:
        run("uvloop", steps(there))
        assert there.metrics.keys() >= {
            "gen_ai.server.request.duration",
            "gen_ai.server.time_to_first_token",
            "gen_ai.client.token.usage",
            "gen_ai.server.time_per_output_token",
        }
        tokens = {
            attributes(point)["gen_ai.token.type"]: point.sum
            for point in there.metrics["gen_ai.client.token.usage"].histogram.data_points
        }
        assert tokens["output"] == 12 + 8


def test_F1_without_a_trace_a_share_of_requests_begins_one_and_the_log_names_it() -> None:
    async def steps(there: Collector) -> None:
        async with scene(telemetry={"otlp_url": there.url, "traces_ratio": 1}) as s:
            assert (await s.ask(chat("Idempotency-Key: k1"))).status == 200
            await flushed(s)
            (own,) = there.named("chat tiny")
            assert own.parent_span_id == b""
            assert (await s.app.explanations.of("k1"))["traces"] == [own.trace_id.hex()]

    with collector() as there:
        run("uvloop", steps(there))


def test_F1_a_refusal_is_a_span_with_its_reason_and_nothing_of_an_engine() -> None:
    async def steps(there: Collector) -> None:
        tenants = {"acme": {"keys": ["env:ACME_KEY"], "active_requests_max": 1}}
        classes = {"interactive": {"on_tenant_full": "refuse"}}
        given = {"otlp_url": there.url, "traces_ratio": 0}
        async with scene(tenants=tenants, classes=classes, telemetry=given) as s:
            client = await s.connect()
            client.send(chat(key="ACME_KEY", stream=True, tokens=800))
            await first_event(client)
            assert (await s.ask(chat(PARENT, key="ACME_KEY"))).status == 429
            await flushed(s)
            (own,) = there.named("chat tiny")
            assert attributes(own)["error.type"] == "tenant_capacity_exceeded" and own.status.code == 2
            assert [span.name for span in there.spans] == ["chat tiny", "queue"]
            client.close()

    with collector() as there:
        run("uvloop", steps(there))


def test_F1_a_collector_that_takes_nothing_costs_requests_nothing_and_what_is_lost_is_said() -> None:
    async def steps(there: Collector) -> None:
        there.takes = False
        async with scene(telemetry={"otlp_url": there.url, "traces_ratio": 1}) as s:
            for _ in range(3):
                assert (await s.ask(chat())).status == 200
            await flushed(s)
            assert s.app.telemetry is not None and s.app.telemetry.dropped == 3
            look = json.loads((await s.admin("/admin/snapshot")).text)
            assert look["troubles"] == ["Traces of 3 requests were not taken by the collector and are lost."]

    with collector() as there:
        run("uvloop", steps(there))


def test_F1_what_waits_for_a_collector_is_bounded() -> None:
    from gateway_records import ended

    from headworks.gateway.telemetry import WAITING_MAX, Telemetry

    class Never:
        def send(self, ended: list[Any]) -> int:
            raise AssertionError("nothing is sent here")

        def close(self) -> None:
            """Nothing to close."""

    telemetry = Telemetry(Never(), 1.0, send_s=3600.0)
    for number in range(WAITING_MAX + 5):
        telemetry.begin(f"r{number}", None)
    assert len(telemetry._open) == WAITING_MAX
    for number in range(WAITING_MAX + 5):
        telemetry.ended(ended("completed", id=f"r{number}"))
    assert (len(telemetry._ended), telemetry.dropped, len(telemetry._open)) == (WAITING_MAX, 5, 0)
    telemetry._ended.clear()
    telemetry.close()


def test_F1_where_the_sdk_is_missing_serve_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from headworks.gateway.telemetry import TelemetryError, opened

    monkeypatch.setitem(sys.modules, "headworks.gateway.telemetry_export", None)
    with pytest.raises(TelemetryError, match=r"install headworks\[otel\]"):
        opened("http://127.0.0.1:4318", 0.1, 0.0, {})
