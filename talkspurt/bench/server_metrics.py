"""Reads Prometheus expositions: counters, and the difference of histograms between two expositions. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

Buckets = dict[float, float]
"""Upper bound in seconds -> cumulative count."""


def histograms(exposition: str, names: Iterable[str]) -> dict[str, Buckets]:
    """Return the named histograms, summed over all labels. A histogram that is absent has empty buckets."""
    found: dict[str, Buckets] = {name: {} for name in names}
    for family in text_string_to_metric_families(exposition):
        if family.name in found:
            buckets = found[family.name]
            for sample in family.samples:
                if sample.name.endswith("_bucket"):
                    bound = float(sample.labels["le"])
                    buckets[bound] = buckets.get(bound, 0.0) + sample.value
    return found


def counted(exposition: str, name: str, **labels: str) -> float:
    """Return the sum of a counter's series with these labels. 0: there are none."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def quantiles_ms(before: Buckets, after: Buckets) -> dict[str, float] | None:
    """Return p50, p95 and p99 of the values counted between two readings, in milliseconds.

    Each is the upper bound of its bucket. None: nothing was counted.
    """
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    total = max(counts.values(), default=0.0)
    if not total:
        return None

    def at_most(share: float) -> float:
        return next(bound for bound, count in counts.items() if count >= share * total) * 1000

    return {"p50_le": at_most(0.5), "p95_le": at_most(0.95), "p99_le": at_most(0.99), "n": total}
