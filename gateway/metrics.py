"""All metrics of the gateway, in their own registry. Times are seconds, sizes are bytes. No label has caller data.

Values that come with every frame (pacing, tick lateness) go into ``gateway.histogram``; a collector adds them to the
same exposition. All others come once per turn or call, which is rare enough for prometheus_client.
"""

from __future__ import annotations

import platform
from collections import Counter as CounterOf
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, generate_latest
from prometheus_client import Histogram as PrometheusHistogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from gateway.histogram import LATENCY_BUCKETS_S, PACING_BUCKETS_S, Histogram
from gateway.seams.end_cause import EndCause
from gateway.seams.leg import RtpReport
from gateway.seams.messages import AnsweredBy
from gateway.sip_metrics import SipMetrics
from gateway.store_metrics import StoreMetrics

_MODELS = 32
"""Most model names with metrics of their own; later ones count as ``other``."""

_GAP_BUCKETS_S = (0.02, 0.04, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_BUFFER_BUCKETS_S = (0.02, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
_JITTER_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16)

M = TypeVar("M", bound=MetricWrapperBase)


def _by_label(metric: M) -> Callable[..., M]:
    """Return ``metric.labels`` with a cache, for counts of every call: prometheus_client checks all label names in each
    look-up."""
    return cache(metric.labels)


def _dropped(registry: CollectorRegistry) -> Counter:
    return Counter(
        "talkspurt_dropped",
        "Messages, packets and pieces of audio that were dropped, by what and why. dialogue_*: audio to a slow "
        "manager, its bad and late messages. sip_*: messages. rtp_*: packets. audio_*: caller audio on its way to "
        "detector and recogniser. turn_model_*: queries without an answer in time. room_late: sound between a call and "
        "its room in another worker.",
        ["what"],
        registry=registry,
    )


def _background_restarts(registry: CollectorRegistry) -> Counter:
    return Counter(
        "talkspurt_background_restarts",
        "Restarts of background tasks, threads and processes that ended by themselves or could not start.",
        ["task"],
        registry=registry,
    )


def supervisor_text(*, dropped: Mapping[str, int], restarts: Mapping[str, int]) -> str:
    """Return the exposition of the workers' supervisor, which has no other figures: the number of things dropped and of
    background tasks restarted since the start."""
    registry = CollectorRegistry()
    for counter, totals in ((_dropped(registry), dropped), (_background_restarts(registry), restarts)):
        for label, total in totals.items():
            counter.labels(label).inc(total)
    return generate_latest(registry).decode()


class Metrics(Collector):
    """The gateway's metrics. Implements ``gateway.call.stats.Meter``.

    Args:
        version: the gateway's version, for ``talkspurt_build_info``.
        calls_limit: ``limits.calls``.
    """

    def __init__(self, *, version: str = "", calls_limit: int = 0) -> None:
        self.registry = registry = CollectorRegistry()
        self.tick_lateness = Histogram(PACING_BUCKETS_S)
        """Lateness of each tick, in seconds. The ticker observes it."""
        self._pacing_errors: dict[str, Histogram] = defaultdict(lambda: Histogram(PACING_BUCKETS_S))
        registry.register(self)

        Info("talkspurt_build", "The program that answers.", registry=registry).info(
            {"version": version, "python": platform.python_version()}
        )
        self._calls_active = _by_label(Gauge("talkspurt_calls_active", "Live calls.", ["transport"], registry=registry))
        limit = Gauge("talkspurt_calls_limit", "Live calls that are allowed (limits.calls).", registry=registry)
        limit.set(calls_limit)
        self._calls = _by_label(
            Counter("talkspurt_calls", "Ended calls, by outcome.", ["transport", "outcome"], registry=registry)
        )
        self._call_causes = Counter(
            "talkspurt_call_causes",
            "Ended calls and failed attempts, by who ended them, class of the SIP status, and Q.850 cause.",
            ["by", "sip", "q850"], registry=registry,
        )  # fmt: skip
        self._call_events = _by_label(Counter(
            "talkspurt_call_events", "Progress of calls as carriers and SIP report it, by transport and event.",
            ["transport", "event"], registry=registry,
        ))  # fmt: skip
        self._bridge_legs = _by_label(Counter(
            "talkspurt_bridge_legs", "Events of second legs, by event.", ["event"], registry=registry
        ))  # fmt: skip
        self._rooms = Gauge("talkspurt_rooms", "Named rooms.", registry=registry)
        self._room_legs = Gauge("talkspurt_room_legs", "Legs of named rooms.", registry=registry)
        self._calls_rejected = Counter(
            "talkspurt_calls_rejected", "Refused calls, by reason.", ["reason"], registry=registry
        )
        self._carrier_oddities = _by_label(Counter(
            "talkspurt_carrier_oddities",
            "Odd messages of carriers and switches that were tolerated, by dialect and kind.",
            ["dialect", "kind"], registry=registry,
        ))  # fmt: skip
        self._first_packet = _by_label(PrometheusHistogram(
            "talkspurt_first_packet_seconds",
            "From the message that makes the first clause speakable to the first audible frame at the socket.",
            ["transport", "engine"], buckets=LATENCY_BUCKETS_S, registry=registry,
        ))  # fmt: skip
        self._first_packet_stage = _by_label(PrometheusHistogram(
            "talkspurt_first_packet_stage_seconds",
            "Parts of the time to the first packet.",
            ["stage"], buckets=LATENCY_BUCKETS_S, registry=registry,
        ))  # fmt: skip
        self._gaps = Counter(
            "talkspurt_gaps", "Times a listener ran dry within an utterance.", ["transport"], registry=registry
        )
        self._gap = PrometheusHistogram(
            "talkspurt_gap_seconds", "Length of those gaps.", buckets=_GAP_BUCKETS_S, registry=registry
        )
        self._cut = PrometheusHistogram(
            "talkspurt_cut_seconds",
            "From cancel, caller speech or a key to the last old frame and the flush on the wire.",
            ["reason"], buckets=LATENCY_BUCKETS_S, registry=registry,
        )  # fmt: skip
        self._turns = _by_label(Counter("talkspurt_turns", "Ended turns, by outcome.", ["outcome"], registry=registry))
        self._dialogue_connected = Gauge(
            "talkspurt_dialogue_connected", "Connected lines to dialogue managers.", ["route"], registry=registry
        )
        self._moved_turns = Counter(
            "talkspurt_moved_turns", "Turns that another engine continued after their first sound.", registry=registry
        )
        self._moves = 0
        self._engine_linked = Gauge(
            "talkspurt_engine_linked",
            "1: turns reach the engine over the link on its machine; 0: over gRPC.",
            ["worker"], registry=registry,
        )  # fmt: skip
        self._models: set[str] = set()
        self._model_turns = _by_label(Counter(
            "talkspurt_model_turns", "Turns of a model on trial, or of the active one.", ["model"],
            registry=registry,
        ))  # fmt: skip
        self._model_failures = Counter(
            "talkspurt_model_failures",
            "Turns that a model on trial failed (error: the active model continued), and gaps within turns.",
            ["model", "kind"], registry=registry,
        )  # fmt: skip
        self._trial_returns = Counter(
            "talkspurt_model_trial_returns", "Trials ended by too many errors or gaps.", ["reason"],
            registry=registry,
        )  # fmt: skip
        self._dialogue_reconnects = Counter(
            "talkspurt_dialogue_reconnects", "Broken dialogue lines that reconnected.", registry=registry
        )
        self._reconnects = 0
        self._dialogue_missed = Counter(
            "talkspurt_dialogue_missed",
            "Messages for a lost dialogue manager: replayed to the next connection, or dropped as too many.",
            ["outcome"], registry=registry,
        )  # fmt: skip
        self._missed = {"replayed": 0, "dropped": 0}
        self.stores = StoreMetrics(registry)
        """Metrics of what is kept after a call."""
        self._dialogue_failed = Counter(
            "talkspurt_dialogue_failed",
            "Calls that lost their dialogue manager for good.",
            ["route"],
            registry=registry,
        )
        self._answers = _by_label(Counter(
            "talkspurt_answers", "Outgoing calls by who answered; a revised verdict counts again.", ["by"],
            registry=registry,
        ))  # fmt: skip
        self._beeps = Counter("talkspurt_beeps", "Recording tones heard on outgoing calls.", registry=registry)
        self._listeners = Counter("talkspurt_listeners", "Listeners that joined a call.", registry=registry)
        self._listener_drops = Counter(
            "talkspurt_listener_drops", "Pieces of sound that slow listeners lost.", registry=registry
        )
        self._tokens_dropped = Counter(
            "talkspurt_stale_tokens", "Tokens dropped because their turn had been cut.", registry=registry
        )
        self._sound_refused = Counter(
            "talkspurt_audio_socket_refused_seconds",
            "Sound of dialogue managers that was dropped because too much of it waited.",
            registry=registry,
        )
        self._stalls = Counter(
            "talkspurt_send_stalls", "Frames dropped at a full socket buffer.", ["transport"], registry=registry
        )
        self._playout_buffer = PrometheusHistogram(
            "talkspurt_playout_buffer_seconds",
            "Sound in hand of a speaking call when a chunk arrives.",
            buckets=_BUFFER_BUCKETS_S, registry=registry,
        )  # fmt: skip
        self._mark_delay = PrometheusHistogram(
            "talkspurt_carrier_mark_delay_seconds",
            "How much later than computed a carrier reports a mark as played.",
            buckets=LATENCY_BUCKETS_S, registry=registry,
        )  # fmt: skip
        self._sip_kept = Gauge(
            "talkspurt_sip_kept",
            "Entries of the SIP tables; all are 0 after the last call.",
            ["table"], registry=registry,
        )  # fmt: skip
        self.sip = SipMetrics(registry)
        """Metrics of SIP peers."""
        self._tasks = Gauge("talkspurt_tasks", "Tasks on the gateway's event loop.", registry=registry)
        self._background_restarts = _background_restarts(registry)
        self._restarts_before: CounterOf[str] = CounterOf()
        self._dropped = _dropped(registry)
        self._dropped_before: CounterOf[str] = CounterOf()
        self._rtp_lost = Counter(
            "talkspurt_rtp_lost", "RTP packets from callers that never arrived.", registry=registry
        )
        self._rtp_jitter = PrometheusHistogram(
            "talkspurt_rtp_jitter_seconds",
            "Interarrival jitter of callers' RTP (RFC 3550 section 6.4.1).",
            buckets=_JITTER_BUCKETS_S, registry=registry,
        )  # fmt: skip

    # --- per frame -------------------------------------------------------------------------------------------------

    def pacing_error(self, transport: str) -> Histogram:
        """Return the histogram of |actual - due| send time of a transport's frames, in seconds. The ticker observes
        it."""
        return self._pacing_errors[transport]

    # --- per call --------------------------------------------------------------------------------------------------

    def call_started(self, *, transport: str) -> None:
        """Count a new live call."""
        self._calls_active(transport).inc()

    def call_ended(self, *, transport: str, outcome: str) -> None:
        """Count the end of a live call. ``outcome``: ``completed``, or ``failed`` (internal error, or no dialogue
        manager)."""
        self._calls_active(transport).dec()
        self._calls(transport, outcome).inc()

    def call_cause(self, cause: EndCause) -> None:
        """Count the cause of a call's end or of a failed attempt. An unknown part is an empty label."""
        status, q850 = cause.sip_status, cause.q850
        sip = "" if status is None else f"{status // 100}xx"
        self._call_causes.labels(cause.by or "", sip, "" if q850 is None else str(q850)).inc()

    def call_event(self, transport: str, event: str) -> None:
        """Count an event of a placed call. ``event``: see ``gateway.seams.messages.ProgressEvent``."""
        self._call_events(transport, event).inc()

    def bridge_leg(self, event: str) -> None:
        """Count an event of a second leg. ``event``: see ``gateway.seams.messages.LegEventName``."""
        self._bridge_legs(event).inc()

    def call_rejected(self, reason: str) -> None:
        """Count a refused call. ``reason`` is the code of ``Rejected``."""
        self._calls_rejected.labels(reason).inc()

    def carrier_oddity(self, dialect: str, kind: str) -> None:
        """Count a message of a carrier that was tolerated. ``kind``: see ``gateway.carriers.oddities``."""
        self._carrier_oddities(dialect, kind).inc()

    def dialogue_failed(self, *, route: str) -> None:
        """Count a call that has lost its dialogue manager for good."""
        self._dialogue_failed.labels(route).inc()

    def kept(self, *, tasks: int, sip: Mapping[str, int]) -> None:
        """Set the number of tasks, and the size of each SIP table."""
        self._tasks.set(tasks)
        for table, entries in sip.items():
            self._sip_kept.labels(table).set(entries)

    def rtp(self, report: RtpReport) -> None:
        """Take the report of an RTP leg, which comes with every RTCP report and at the leg's end."""
        self._rtp_lost.inc(report.lost)
        if report.jitter_s is not None:
            self._rtp_jitter.observe(report.jitter_s)
        for reason, count in report.dropped.items():
            self._dropped.labels(f"rtp_{reason}").inc(count)

    def dropped(self, totals: Mapping[str, int]) -> None:
        """Take the number of dropped things since the start, by what was dropped and why."""
        for what, total in totals.items():
            self._dropped.labels(what).inc(total - self._dropped_before[what])
            self._dropped_before[what] = total

    def background_restarts(self, totals: Mapping[str, int]) -> None:
        """Take the number of restarts since the start, by the name of the background task."""
        for task, total in totals.items():
            self._background_restarts.labels(task).inc(total - self._restarts_before[task])
            self._restarts_before[task] = total

    # --- per turn --------------------------------------------------------------------------------------------------

    def first_packet(self, *, transport: str, engine: str, seconds: float, stages_ms: dict[str, float]) -> None:
        """Observe the first audio of a turn. ``engine``: the source of the audio; ``stages_ms``: the time by stage of
        ``gateway.call.turn_taking.turn.STAGES``."""
        self._first_packet(transport, self._bounded(engine)).observe(seconds)
        for stage, milliseconds in stages_ms.items():
            self._first_packet_stage(stage).observe(milliseconds / 1000)

    def gap(self, *, transport: str, seconds: float) -> None:
        """Observe a gap of ``seconds`` in a turn."""
        self._gaps.labels(transport).inc()
        self._gap.observe(seconds)

    def cut(self, *, reason: str, seconds: float) -> None:
        """Observe a cut. ``reason``: ``speech``, ``dtmf`` or ``cancel``."""
        self._cut.labels(reason).observe(seconds)

    def turn_ended(self, *, outcome: str) -> None:
        """Count the end of a turn. ``outcome``: ``finished``, ``interrupted`` or ``failed``."""
        self._turns(outcome).inc()

    def mark_delay(self, *, seconds: float) -> None:
        """Observe a carrier's mark that came ``seconds`` after its computed time."""
        self._mark_delay.observe(seconds)

    def playout_buffer(self, *, seconds: float) -> None:
        """Observe the buffered audio, in seconds, when a chunk arrives for the speaking turn."""
        self._playout_buffer.observe(seconds)

    def stalled(self, *, transport: str) -> None:
        """Count a frame that was dropped because the socket buffer was full."""
        self._stalls.labels(transport).inc()

    # --- dialogue --------------------------------------------------------------------------------------------------

    def dialogue_connected(self, *, route: str, lines: int) -> None:
        """Set the number of live connections to dialogue managers of a route."""
        self._dialogue_connected.labels(route).set(lines)

    def moved_turns(self, *, total: int) -> None:
        """Take the total of turns that were continued at another engine."""
        self._moved_turns.inc(total - self._moves)
        self._moves = total

    def engines_linked(self, linked: Sequence[bool]) -> None:
        """Set for each engine whether it is linked. The index of an engine is ``worker`` in its own series."""
        self._engine_linked.clear()  # an engine may be gone
        for worker, stands in enumerate(linked):
            self._engine_linked.labels(str(worker)).set(stands)

    def model_turn(self, model: str) -> None:
        """See ``gateway.model_trial.TrialMeter``."""
        self._model_turns(self._bounded(model)).inc()

    def model_failure(self, model: str, kind: str) -> None:
        """See ``gateway.model_trial.TrialMeter``."""
        self._model_failures.labels(self._bounded(model), kind).inc()

    def trial_returned(self, reason: str) -> None:
        """See ``gateway.model_trial.TrialMeter``."""
        self._trial_returns.labels(reason).inc()

    def _bounded(self, model: str) -> str:
        """Return the model's name as a label. Operators choose model names, so the number of labels is limited."""
        if model not in self._models:
            if len(self._models) >= _MODELS:
                return "other"
            self._models.add(model)
        return model

    def dialogue_reconnects(self, *, total: int) -> None:
        """Take the total of broken connections that were restored."""
        self._dialogue_reconnects.inc(total - self._reconnects)
        self._reconnects = total

    def dialogue_missed(self, *, replayed: int, dropped: int) -> None:
        """Take the totals of messages that were replayed to later connections, and of dropped ones."""
        for outcome, total in (("replayed", replayed), ("dropped", dropped)):
            self._dialogue_missed.labels(outcome).inc(total - self._missed[outcome])
            self._missed[outcome] = total

    def rooms(self, rooms: int, legs: int) -> None:
        """Take the numbers of named rooms and of their legs."""
        self._rooms.set(rooms)
        self._room_legs.set(legs)

    def answered(self, by: AnsweredBy) -> None:
        """Count a verdict on who or what has answered an outgoing call."""
        self._answers(by).inc()

    def beep(self) -> None:
        """Count a recording tone."""
        self._beeps.inc()

    def listener_joined(self) -> None:
        """Count a new listener of a call."""
        self._listeners.inc()

    def listener_dropped(self, count: int) -> None:
        """Count audio pieces that a listener lost."""
        self._listener_drops.inc(count)

    def tokens_dropped(self, count: int) -> None:
        """Count tokens that came for a turn that was already cut."""
        self._tokens_dropped.inc(count)

    def sound_refused(self, seconds: float) -> None:
        """Count sound of a dialogue manager that there was no room for."""
        self._sound_refused.inc(seconds)

    # --- out -------------------------------------------------------------------------------------------------------

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format, version 0.0.4."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the histograms that are counted per frame."""
        pacing = HistogramMetricFamily(
            "talkspurt_pacing_error_seconds", "Actual minus due time of a frame.", labels=["transport"]
        )
        for transport, histogram in self._pacing_errors.items():
            pacing.add_metric([transport], histogram.cumulative(), histogram.total)
        yield pacing
        lateness = HistogramMetricFamily(
            "talkspurt_tick_lateness_seconds", "How late the event loop comes to a tick of the pacing timer."
        )
        lateness.add_metric([], self.tick_lateness.cumulative(), self.tick_lateness.total)
        yield lateness
