"""The page of the metrics, from the registries of gateway and engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from gateway.metrics import Metrics
from talkspurt.commands.canary import CanaryMetrics
from talkspurt.reference.table import table
from tts_engine.metrics import REGISTRY

_HEAD = """# Metrics

<!-- Written by `python -m talkspurt.reference docs`; change `metrics.py` in `gateway/` and
     `tts_engine/`, `gateway/sip_metrics.py` or `gateway/store_metrics.py`. -->

`GET /metrics` (scope `admin`) has all of these in Prometheus' text format, with those of the engines, which the label
`worker` numbers. Times are seconds, sizes bytes; counters end in `_total`. A histogram `NAME` has `NAME_bucket`,
`NAME_sum` and `NAME_count`. No label holds a caller's data.

`configs/prometheus.yml` collects them, `configs/grafana/` draws them, and `configs/prometheus/alerts.yaml` has the
alerts, which [runbook.md](runbook.md) explains.
"""

_DASHBOARD = """## Dashboard

`configs/grafana/dashboards/talkspurt.json` has single numbers on top and a closed row for each question. No series
names a tenant; `GET /v1/usage` does ([billing.md](billing.md)).

* `docker compose up` loads it, with Prometheus and the alert rules.
* In your Grafana: Dashboards, New, Import, and choose the file and your Prometheus.
* The job must be called `talkspurt`, as in `configs/prometheus.yml`. The panel of firing alerts needs `alerts.yaml` in
  `rule_files`; the canary's panels need its port among the targets.
* Links to these documents need their address: here the field "Address of docs/", in alerts `external_labels.docs` of
  `configs/prometheus.yml`.
"""


def markdown() -> str:
    """Return the page."""
    gateway = Metrics()
    gateway.pacing_error("sip")  # made with a transport's first frame, and without labels until then
    parts = [_HEAD]
    for title, registry in (("Gateway", gateway.registry), ("Engine", REGISTRY), ("Canary", CanaryMetrics().registry)):
        rows = sorted(_rows(registry))
        parts.append(f"## {title}\n\n" + table(("series", "kind", "labels", "meaning"), rows))
    return "\n".join([*parts, _DASHBOARD])


def _rows(registry: CollectorRegistry) -> Iterable[tuple[str, str, str, str]]:
    labels = _labels(registry)
    for family in registry.collect():
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        shown = ", ".join(f"`{label}`" for label in labels.get(family.name) or _of_samples(family))
        yield f"`{name}`", family.type, shown, family.documentation.rstrip(".")


def _labels(registry: CollectorRegistry) -> dict[str, tuple[str, ...]]:
    """Return the labels of each family. A family without series yet shows them only in its collector."""
    names: dict[Any, list[str]] = registry._collector_to_names
    return {name: getattr(collector, "_labelnames", ()) for collector, each in names.items() for name in each}


def _of_samples(family: Metric) -> list[str]:
    return sorted({label for sample in family.samples for label in sample.labels} - {"le"})
