"""One OpenTelemetry trace for each call, sent to a collector by OTLP over HTTP. Needs the extra ``[otel]``.

The trace id is the call id without ``VX``, and the id of the root span ``call`` is its end, so both follow from the
call id. The root is sent after the call, each turn after the turn.

The span ``turn`` lasts from the message that completed the first clause to the turn's end. Its children are the stages
of the first packet, one after the other, and ``speaking`` from the first packet on. No attribute has spoken text, a
number, or an id that a manager chose.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from gateway.call.turn_taking.turn import STAGES
from gateway.config import TracingConfig
from gateway.seams.tracing import CallTrace, TurnTrace

EXPORT_S = 10.0
"""Longest request to the collector, and longest wait for it at the end, seconds."""

_QUEUE_SPANS = 8192
"""Most spans that wait for the collector. While it is gone, further spans are dropped."""


class OtelTracer:
    """A ``gateway.seams.tracing.Tracer``. A thread of the SDK sends; nothing here waits for the collector."""

    def __init__(
        self,
        config: TracingConfig,
        *,
        version: str,
        now: Callable[[], float],
        exporter: SpanExporter | None = None,
    ) -> None:
        """
        Args:
            now: the clock of the turns, monotonic seconds.
            exporter: takes the spans. None: OTLP over HTTP to ``config.endpoint``.
        """
        if exporter is None:
            headers = {name: value.get_secret_value() for name, value in config.headers.items()}
            exporter = OTLPSpanExporter(endpoint=config.endpoint, headers=headers, timeout=EXPORT_S)
        resource = Resource.create({"service.name": config.service_name, "service.version": version})
        self._sampler = TraceIdRatioBased(config.share)
        self._provider = TracerProvider(resource=resource, sampler=self._sampler, shutdown_on_exit=False)
        self._processor = BatchSpanProcessor(
            exporter,
            max_queue_size=_QUEUE_SPANS,
            max_export_batch_size=512,
            export_timeout_millis=EXPORT_S * 1000,
        )
        self._provider.add_span_processor(self._processor)
        self._scope = InstrumentationScope("talkspurt", version)
        self._tracer = self._provider.get_tracer("talkspurt", version)
        self._now = now

    def _root(self, call_id: str) -> SpanContext:
        """Return the span context of a call, with the flag for sampled calls."""
        digits = call_id.removeprefix("VX")
        trace_id = int(digits, 16)
        sampled = self._sampler.should_sample(None, trace_id, "call").decision is Decision.RECORD_AND_SAMPLE
        flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        return SpanContext(trace_id, int(digits[-16:], 16), is_remote=False, trace_flags=flags)

    def traceparent(self, call_id: str) -> str:
        """Return the call's span as W3C Trace Context, section 3.2."""
        root = self._root(call_id)
        return f"00-{root.trace_id:032x}-{root.span_id:016x}-{root.trace_flags:02x}"

    def call(self, trace: CallTrace) -> None:
        """Send the span of a call that is over."""
        # The SDK's tracer would generate other ids.
        ns = self._epoch_ns()
        failed = trace.outcome == "failed"
        span = ReadableSpan(
            "call",
            context=self._root(trace.call_id),
            resource=self._provider.resource,
            attributes={
                "talkspurt.call": trace.call_id,
                "talkspurt.route": trace.route,
                "talkspurt.transport": trace.transport,
                "talkspurt.outcome": trace.outcome,
            },
            status=Status(StatusCode.ERROR) if failed else Status(),
            start_time=ns(trace.begun_at),
            end_time=ns(trace.ended_at),
            instrumentation_scope=self._scope,
        )
        self._processor.on_end(span)  # leaves out a call that is not sampled

    def _epoch_ns(self) -> Callable[[float], int]:
        """Return the conversion from the clock of the turns to nanoseconds since the epoch."""
        epoch_s = time.time() - self._now()
        return lambda at: round((at + epoch_s) * 1e9)

    def turn(self, trace: TurnTrace) -> None:
        """Send the spans of a turn that is over."""
        ns = self._epoch_ns()
        root = self._tracer.start_span(
            "turn",
            set_span_in_context(NonRecordingSpan(self._root(trace.call_id))),
            start_time=ns(trace.begun_at),
            attributes={
                "talkspurt.call": trace.call_id,
                "talkspurt.route": trace.route,
                "talkspurt.transport": trace.transport,
                "talkspurt.kind": trace.kind,
                "talkspurt.outcome": trace.outcome,
                "talkspurt.reason": trace.reason,
                "talkspurt.gaps": trace.gaps,
            },
        )
        if trace.first_at is not None:
            root.set_attribute("talkspurt.engine", trace.engine)
            self._stages(root, trace, trace.first_at, ns)
        if trace.outcome == "failed":
            root.set_status(Status(StatusCode.ERROR))
        root.end(ns(trace.ended_at))

    def _stages(self, root: Span, trace: TurnTrace, first_at: float, ns: Callable[[float], int]) -> None:
        within = set_span_in_context(root)
        at = first_at - sum(trace.stages_ms.values()) / 1000
        for stage in (name for name in STAGES if trace.stages_ms.get(name, 0.0) > 0):
            span = self._tracer.start_span(stage, within, start_time=ns(at))
            at += trace.stages_ms[stage] / 1000
            span.end(ns(at))
        self._tracer.start_span("speaking", within, start_time=ns(first_at)).end(ns(trace.ended_at))

    def close(self) -> None:
        """Send the remaining spans within the collector's timeout, and end the thread. Blocks."""
        self._provider.shutdown()
