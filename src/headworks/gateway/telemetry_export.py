"""What has ended, as OpenTelemetry has it: spans and `gen_ai` histograms, over OTLP/HTTP. The only module that knows the SDK.

Names are those of the conventions for generative AI as they stood in November 2026 (status: development), written here as our
own constants, since the package's are deprecated; what they have no name for begins with `headworks.`."""

from __future__ import annotations

import secrets
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from headworks import __version__
from headworks.core.effects import Outcome
from headworks.gateway.telemetry import Traced

SCOPE = InstrumentationScope("headworks", __version__)
SEND_TIMEOUT_S = 10.0
METRICS_MS = 10_000.0
DURATION_BUCKETS_S = tuple(0.01 * 2**power for power in range(14))
TOKEN_BUCKETS = tuple(4**power for power in range(14))
TTFT_BUCKETS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
TPOT_BUCKETS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
OTHER_OPERATION = "other"
NS_PER_S = 1_000_000_000


class Exporter:
    """Sends to one collector. `offset_s`: what Unix time is ahead of the clock of records."""

    def __init__(self, url: str, offset_s: float, resource: dict[str, Any]) -> None:
        self._offset_s = offset_s
        self._resource = Resource.create({"service.name": "headworks", "service.version": __version__, **resource})
        base = url.rstrip("/")
        self._spans = OTLPSpanExporter(f"{base}/v1/traces", timeout=SEND_TIMEOUT_S)
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(f"{base}/v1/metrics", timeout=SEND_TIMEOUT_S), export_interval_millis=METRICS_MS
        )
        self._meters = MeterProvider([reader], self._resource)
        meter = self._meters.get_meter("headworks", __version__)
        self._duration = meter.create_histogram(
            "gen_ai.server.request.duration", "s", explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S
        )
        self._ttft = meter.create_histogram(
            "gen_ai.server.time_to_first_token", "s", explicit_bucket_boundaries_advisory=TTFT_BUCKETS_S
        )
        self._tpot = meter.create_histogram(
            "gen_ai.server.time_per_output_token", "s", explicit_bucket_boundaries_advisory=TPOT_BUCKETS_S
        )
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", explicit_bucket_boundaries_advisory=TOKEN_BUCKETS
        )

    def send(self, ended: list[tuple[Traced | None, Outcome]]) -> int:
        """Requests that have ended; those that are not recorded are only counted. Returns how many could not be sent."""
        spans: list[ReadableSpan] = []
        requests = 0
        for traced, outcome in ended:
            self._count(outcome)
            if traced is not None:
                requests += 1
                spans += self._request(traced, outcome)
        taken = not spans or self._spans.export(spans) is SpanExportResult.SUCCESS
        return 0 if taken else requests

    def close(self) -> None:
        """Everything that is counted is sent once more, if it is taken."""
        self._meters.shutdown(timeout_millis=SEND_TIMEOUT_S * 1000)
        self._spans.shutdown()  # type: ignore[no-untyped-call]

    # metrics

    def _count(self, outcome: Outcome) -> None:
        about: dict[str, Any] = {**_operation(outcome)}
        if outcome.outcome != "completed":
            about["error.type"] = outcome.reason or outcome.outcome
        self._duration.record(outcome.ended_s - outcome.arrived_s, about)
        usage, first_s = outcome.usage, outcome.first_byte_s
        if first_s is not None:
            self._ttft.record(first_s - outcome.arrived_s, about)
        if usage is None:
            return
        self._tokens.record(usage.prompt_tokens, {**about, "gen_ai.token.type": "input"})
        self._tokens.record(usage.output_tokens, {**about, "gen_ai.token.type": "output"})
        further = usage.output_tokens // max(1, outcome.work.sequences) - 1
        if first_s is not None and further > 0:
            self._tpot.record((outcome.ended_s - first_s) / further, about)

    # spans

    def _request(self, traced: Traced, outcome: Outcome) -> list[ReadableSpan]:
        """Its span, and what was in it."""
        context = traced.context
        trace_id, state = int(context.trace_id, 16), TraceState.from_header([context.state.decode("ascii")])
        own = _context(trace_id, traced.span_id, state)
        parent = _context(trace_id, context.parent_id, state, is_remote=True) if context.parent_id else None
        about = _operation(outcome) | _about(outcome)
        name = f"{about['gen_ai.operation.name']} {outcome.model}"
        failed = outcome.outcome != "completed"
        status = Status(StatusCode.ERROR, outcome.reason or outcome.outcome) if failed else Status(StatusCode.OK)
        made = [self._span(name, own, parent, SpanKind.SERVER, outcome.arrived_s, outcome.ended_s, about, status)]
        waited_to_s = outcome.ended_s if outcome.admitted_s is None else outcome.admitted_s
        queued = _context(trace_id, secrets.token_hex(8).encode(), state)
        made.append(self._span("queue", queued, own, SpanKind.INTERNAL, outcome.arrived_s, waited_to_s, {}, Status()))
        if outcome.sent_s is not None:
            engine = _context(trace_id, traced.engine_span_id, state)
            where = {"headworks.replica": outcome.replica, "headworks.execution": outcome.execution}
            made.append(self._span("engine", engine, own, SpanKind.CLIENT, outcome.sent_s, outcome.ended_s, where, Status()))
        return made

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        begun_s: float,
        ended_s: float,
        attributes: dict[str, Any],
        status: Status,
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            context,
            parent,
            self._resource,
            attributes,
            kind=kind,
            status=status,
            start_time=self._unix_ns(begun_s),
            end_time=self._unix_ns(ended_s),
            instrumentation_scope=SCOPE,
        )

    def _unix_ns(self, at_s: float) -> int:
        return round((at_s + self._offset_s) * NS_PER_S)


def _context(trace_id: int, span_id: bytes, state: TraceState, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, int(span_id, 16), is_remote, TraceFlags(TraceFlags.SAMPLED), state)


def _operation(outcome: Outcome) -> dict[str, Any]:
    route = outcome.request.route if outcome.request is not None else ""
    return {
        "gen_ai.operation.name": OPERATIONS.get(route, OTHER_OPERATION),
        "gen_ai.provider.name": "headworks",
        "gen_ai.request.model": outcome.model,
    }


def _about(outcome: Outcome) -> dict[str, Any]:
    """Names and numbers of a request, none of its text."""
    found: dict[str, Any] = {
        "headworks.request": outcome.id,
        "headworks.tenant": outcome.key.tenant,
        "headworks.class": outcome.service_class,
        "headworks.pool": outcome.pool,
        "headworks.outcome": outcome.outcome,
        "headworks.in_slo": outcome.in_slo,
        "headworks.reserved_tokens": outcome.work.tokens,
    }
    if outcome.reason:
        found["error.type"] = found["headworks.reason"] = outcome.reason
    if outcome.evidence:
        found["headworks.evidence"] = outcome.evidence
    usage = outcome.usage
    if usage is not None:
        found["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        found["gen_ai.usage.output_tokens"] = usage.output_tokens
        found["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    return found
