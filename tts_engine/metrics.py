"""The engine's metrics. They have a registry of their own, because the gateway shows them beside its own metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 2)

REGISTRY = CollectorRegistry()

FIRST_CHUNK = Histogram(
    "talkspurt_engine_first_chunk_seconds",
    "From the text that made the first clause speakable to its first audible chunk",
    ["engine"],
    buckets=SECONDS,
    registry=REGISTRY,
)
FIRST_BYTE = Histogram(
    "cv_audio_first_byte_seconds", "Alias of talkspurt_engine_first_chunk_seconds", buckets=SECONDS, registry=REGISTRY
)
QUEUE = Histogram(
    "talkspurt_engine_queue_seconds",
    "Wait of an engine step for its turn",
    buckets=SECONDS,
    registry=REGISTRY,
)
ADMISSION = Histogram(
    "talkspurt_engine_admission_seconds",
    "Wait of a turn for a place in the engine; turns that find one at once are not counted",
    ["outcome"],
    buckets=SECONDS,
    registry=REGISTRY,
)
ADMISSION_WAITING = Gauge(
    "talkspurt_engine_admission_waiting", "Turns that wait for a place in the engine", registry=REGISTRY
)
REFUSED = Counter(
    "talkspurt_engine_refused",
    "Refused turns; at_once: the client had other engines to ask",
    ["reason"],
    registry=REGISTRY,
)
FREED = Histogram(
    "talkspurt_engine_freed_seconds",
    "From a cancel until the engine stops work on the utterance",
    buckets=(0.002, 0.005, 0.01, 0.015, 0.02, *SECONDS[1:]),
    registry=REGISTRY,
)
UNHEARD = Counter(
    "talkspurt_engine_unheard_seconds",
    "Sound of utterances that were cut while they were being made, made and not heard by then",
    registry=REGISTRY,
)
REALTIME_FACTOR = Histogram(
    "talkspurt_engine_realtime_factor",
    "Seconds of engine time per second of audio, by clause",
    ["engine"],
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 5),
    registry=REGISTRY,
)
BATCH_SIZE = Histogram(
    "talkspurt_engine_batch_size",
    "Utterances in one engine step",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    registry=REGISTRY,
)
RECOMPUTED = Counter(
    "talkspurt_engine_recomputed_chunks",
    "Chunks that ran again without sound, because another clause had taken their cache",
    registry=REGISTRY,
)
CACHE_BYTES = Gauge("talkspurt_engine_cache_bytes", "Memory in the engine's caches", ["cache"], registry=REGISTRY)
FREE_BLOCKS = Gauge(
    "talkspurt_engine_free_blocks",
    "Free blocks of the voice model's cache; a block holds a second of a clause",
    registry=REGISTRY,
)
NO_PLACE = Counter(
    "talkspurt_engine_no_place",
    "Answers of the voice model that it has no place, by the resource that is short; a waiting turn asks every 10 ms",
    ["short"],
    registry=REGISTRY,
)
GPU_MEMORY_USED = Gauge(
    "talkspurt_gpu_memory_used_bytes",
    "Memory in use on the engine's GPU, by all processes (NVML)",
    ["gpu"],
    registry=REGISTRY,
)
GPU_MEMORY_TOTAL = Gauge(
    "talkspurt_gpu_memory_total_bytes", "Memory of the engine's GPU (NVML)", ["gpu"], registry=REGISTRY
)
GPU_UTILISATION = Gauge(
    "talkspurt_gpu_utilisation_ratio",
    "Share of the latest sample period in which any kernel ran on the engine's GPU (NVML)",
    ["gpu"],
    registry=REGISTRY,
)
TEXT_CACHE_REQUESTS = Counter(
    "talkspurt_text_cache_requests",
    "Look-ups in the text cache; shared: the clause was being made for another utterance",
    ["outcome"],
    registry=REGISTRY,
)
DRAFTS = Counter(
    "talkspurt_engine_drafts",
    "Clauses made before the text showed that they were complete; dropped: they were not, or were cut",
    ["outcome"],
    registry=REGISTRY,
)
NORMALISER_REQUESTS = Counter(
    "talkspurt_text_normaliser_requests",
    "Clauses whose numbers and dates were turned into words; hit: the words were remembered",
    ["outcome"],
    registry=REGISTRY,
)


class PrometheusObserver:
    """A ``tts_engine.pipeline.observer.EngineObserver`` that counts into ``REGISTRY``."""

    def first_chunk(self, engine: str, seconds: float) -> None:
        FIRST_CHUNK.labels(engine).observe(seconds)
        FIRST_BYTE.observe(seconds)

    def queued(self, seconds: float) -> None:
        QUEUE.observe(seconds)

    def admission(self, seconds: float, outcome: str) -> None:
        ADMISSION.labels(outcome).observe(seconds)

    def waiting(self, turns: int) -> None:
        ADMISSION_WAITING.set(turns)

    def refused(self, reason: str) -> None:
        REFUSED.labels(reason).inc()

    def realtime_factor(self, engine: str, factor: float) -> None:
        REALTIME_FACTOR.labels(engine).observe(factor)

    def text_cache(self, outcome: str, cache_bytes: int) -> None:
        TEXT_CACHE_REQUESTS.labels(outcome).inc()
        CACHE_BYTES.labels("text").set(cache_bytes)

    def normalised(self, *, hit: bool) -> None:
        """See ``tts_engine.cosyvoice.frontend.normaliser.NormaliserObserver``."""
        NORMALISER_REQUESTS.labels("hit" if hit else "miss").inc()

    def batch(self, rows: int, *, cache: str, cache_bytes: int, free_blocks: int) -> None:
        """See ``tts_engine.cosyvoice.synthesizer.StepObserver``. May be called in any thread."""
        BATCH_SIZE.observe(rows)
        CACHE_BYTES.labels(cache).set(cache_bytes)
        FREE_BLOCKS.set(free_blocks)

    def no_place(self, short: str) -> None:
        """See ``tts_engine.cosyvoice.synthesizer.StepObserver``."""
        NO_PLACE.labels(short).inc()

    def recomputed(self, chunks: int) -> None:
        """See ``tts_engine.cosyvoice.synthesizer.StepObserver``. May be called in any thread."""
        RECOMPUTED.inc(chunks)

    def gpu(self, name: str, *, used_bytes: int, total_bytes: int, utilisation: float) -> None:
        """See ``tts_engine.cosyvoice.gpu_sampler.GpuObserver``. Called in the sampler's thread."""
        GPU_MEMORY_USED.labels(name).set(used_bytes)
        GPU_MEMORY_TOTAL.labels(name).set(total_bytes)
        GPU_UTILISATION.labels(name).set(utilisation)

    def draft(self, *, kept: bool) -> None:
        DRAFTS.labels("kept" if kept else "dropped").inc()

    def unheard(self, seconds: float) -> None:
        UNHEARD.inc(seconds)

    def freed(self, seconds: float) -> None:
        FREED.observe(seconds)


def exposition() -> bytes:
    """Return everything above in the Prometheus text format (version 0.0.4)."""
    return generate_latest(REGISTRY)


def merged(expositions: Sequence[bytes]) -> bytes:
    """Join the metrics of several engines into one exposition. The label ``worker`` numbers the engines."""
    return _joined(({"worker": str(worker)}, exposed) for worker, exposed in enumerate(expositions))


def with_models(own: bytes, others: Mapping[str, bytes]) -> bytes:
    """Join an engine's metrics with those of models that have processes of their own. These get the label ``model``."""
    if not others:
        return own
    return _joined([({}, own), *(({"model": name}, exposed) for name, exposed in others.items())])


def _joined(expositions: Iterable[tuple[dict[str, str], bytes]]) -> bytes:
    """Join expositions; the samples of each get its labels."""
    families: dict[str, Metric] = {}
    for labels, exposed in expositions:
        for family in text_string_to_metric_families(exposed.decode()):
            into = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            into.samples += [sample._replace(labels=sample.labels | labels) for sample in family.samples]
    registry = CollectorRegistry()
    registry.register(_Families(families.values()))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families
