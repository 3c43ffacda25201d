"""Adds up the metrics of several workers, as text in Prometheus' format 0.0.4. Pure.

Counters, histograms and most gauges are summed. Gauges that are the same in all workers show their largest value. The
counts of a dead worker stay in the sums: a falling total would look like a restart, and a rate over it would count
everything again.
"""

from __future__ import annotations

from collections.abc import Sequence

_SAME_IN_ALL_WORKERS = ("talkspurt_build_info", "talkspurt_database_answers", "talkspurt_database_waiting",
          "talkspurt_dialogue_connected", "talkspurt_engine_linked", "talkspurt_sip_registered",
          "talkspurt_sip_trunk_answers")  # fmt: skip
_COUNTED = ("_total", "_count", "_sum", "_bucket")


def add(texts: Sequence[str], retired: Sequence[str] = ()) -> str:
    """Return the metrics of all workers.

    Args:
        texts: the text of each living worker.
        retired: the last texts of dead workers, of which only counts are used.
    """
    families: dict[str, tuple[list[str], dict[str, float]]] = {}
    """Comments, and values by series, of each metric."""
    for number, text in enumerate((*texts, *retired)):
        dead = number >= len(texts)
        comments: list[str] = []
        series: dict[str, float] = {}
        for line in text.splitlines():
            if line.startswith("# HELP "):
                known = families.setdefault(line.split(" ", 3)[2], ([], {}))
                comments, series = ([], known[1]) if known[0] else known
            if line.startswith("#"):
                comments.append(line)
                continue
            name, _, value = line.rpartition(" ")
            if not dead:
                series[name] = _join(name, series[name], float(value)) if name in series else float(value)
            elif name.partition("{")[0].endswith(_COUNTED):
                series[name] = series.get(name, 0.0) + float(value)
    return "".join(
        "\n".join((*comments, *(f"{name} {value!r}" for name, value in series.items()))) + "\n"
        for comments, series in families.values()
    )


def _join(series: str, one: float, other: float) -> float:
    name = series.partition("{")[0]
    if name.endswith("_created"):
        return min(one, other)
    return max(one, other) if name in _SAME_IN_ALL_WORKERS else one + other
