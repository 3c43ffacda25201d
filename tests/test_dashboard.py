"""configs/grafana: the dashboard is made of its script, Grafana's own types read it, and what it asks for exists."""

import importlib.util
import json
import re
import sys
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.test_metrics import used
from tests.test_alerts import ALERTS, ROOT, RULES, labels_by_series
from tts_engine.metrics import REGISTRY

FILE = ROOT / "configs/grafana/dashboards/talkspurt.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
ROWS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
STATS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
PANELS = [*STATS, *(panel for row in ROWS for panel in row["panels"])]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
PROMETHEUS = {"up": {"job", "instance"}, "ALERTS": {"alertname", "alertstate", "severity"}}


def known_labels() -> dict[str, set[str]]:
    """Labels by series: those of the reference, Prometheus' own, and those that tell engines apart."""
    engine = (ROOT / "docs/metrics.md").read_text().partition("## Engine")[2].partition("## Canary")[0]
    return PROMETHEUS | {
        name: labels | ({"worker", "model"} if f"`{re.sub('_(bucket|sum|count)$', '', name)}`" in engine else set())
        for name, labels in labels_by_series().items()
    }


def series_of(expr: str) -> set[str]:
    return set(re.findall(r"\b(?:talkspurt_\w+|cv_\w+|up(?=\{)|ALERTS(?=\{))", expr))


def buckets() -> dict[str, set[float]]:
    """Upper bounds by histogram."""
    found: dict[str, set[float]] = {}
    families = [*text_string_to_metric_families(used().exposition().decode()), *REGISTRY.collect()]
    for sample in (sample for family in families for sample in family.samples if "le" in sample.labels):
        found.setdefault(sample.name.removesuffix("_bucket"), set()).add(float(sample.labels["le"]))
    for collector, names in REGISTRY._collector_to_names.items():  # one with labels has no samples yet
        found |= {name: set(collector._upper_bounds) for name in names if hasattr(collector, "_upper_bounds")}
    return found


def test_the_file_is_what_the_script_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("make_dashboard", FILE.parent.parent / "make_dashboard.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, script)  # where its dataclasses look
    spec.loader.exec_module(script)
    assert script.text() == FILE.read_text(), "python configs/grafana/make_dashboard.py"


def test_grafanas_own_types_know_every_field() -> None:
    """A field that they do not know is lost, or raises, when they read the file and write it again."""
    register_default_plugins()
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))

    def lost(ours: Any, theirs: Any) -> bool:
        if isinstance(ours, dict):
            return any(key not in theirs or lost(value, theirs[key]) for key, value in ours.items())
        if isinstance(ours, list):
            return len(ours) != len(theirs) or any(map(lost, ours, theirs))
        return bool(ours != theirs)

    assert [key for key in DASHBOARD if key != "panels" and lost(DASHBOARD[key], again.get(key))] == []
    assert [
        one["title"] for one, other in zip(DASHBOARD["panels"], again["panels"], strict=True) if lost(one, other)
    ] == []


def overlap(panels: list[dict[str, Any]]) -> bool:
    squares = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    return len(set(squares)) < len(squares) or max(x for x, _ in squares) > 23


def test_numbers_are_on_top_and_the_rows_below_are_closed_questions() -> None:
    assert len(ROWS) >= 9 and all(row["title"].endswith("?") and row["collapsed"] for row in ROWS)
    assert [panel["type"] for panel in STATS] == ["stat"] * len(STATS)
    top = {panel["gridPos"]["y"] for panel in STATS}
    assert top == {0} and all(row["gridPos"]["y"] >= 4 for row in ROWS)
    assert not overlap(DASHBOARD["panels"]) and not any(overlap([row, *row["panels"]]) for row in ROWS)
    numbers = [panel["id"] for panel in (*PANELS, *ROWS)]
    assert len(set(numbers)) == len(numbers)
    assert DASHBOARD["refresh"] == "15s"


def test_every_series_and_label_of_a_query_exists() -> None:
    known = known_labels()
    for panel in PANELS:
        for target in panel["targets"]:
            expr = target["expr"]
            names = series_of(expr)
            assert names and names <= known.keys(), (panel["title"], names - known.keys())
            for name, given in re.findall(r"\b([a-zA-Z_]\w*)\{(.*?)\}", expr):
                assert set(re.findall(r"(\w+)(?:=~|!=|=)", given)) <= known[name], (panel["title"], expr)
            labels = set().union(*(known[name] for name in names))
            by = {word for group in re.findall(r"\bby \((.*?)\)", expr) for word in group.split(", ")}
            assert by <= labels and set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= (by or labels), expr


def test_every_query_follows_the_variables_that_its_series_know() -> None:
    known = known_labels()
    for expr in EXPRESSIONS:
        for name in series_of(expr) - {"ALERTS"}:
            if name.startswith("talkspurt_canary_"):  # which is no gateway
                continue
            wanted = [f'{label}=~"${label}"' for label in ("instance", "route") if label in known[name]]
            for given in re.findall(rf"\b{name}\b(?:\{{(.*?)\}})?", expr):
                assert all(each in given for each in wanted), expr


def test_every_series_of_the_reference_that_is_no_alias_is_drawn() -> None:
    drawn = {re.sub("_(bucket|sum|count)$", "", name) for expr in EXPRESSIONS for name in series_of(expr)}
    everything = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/metrics.md").read_text(), re.M))
    assert everything - drawn == {"cv_audio_first_byte_seconds", "talkspurt_canary_calls_total"}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_has_its_figure_threshold_and_runbook_entry(alert: dict[str, Any]) -> None:
    recorded = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
    panels = [panel for panel in PANELS if f"runbook.md#{alert['alert'].lower()})" in panel["description"]]
    for part in re.split(r"\s+or\s+", alert["expr"].strip()):
        figure, how, value = part.rsplit(" ", 2)
        read = series_of(recorded.get(figure, figure))
        bound = {"color": "red", "value": float(value)} if how == ">" else {"color": "green", "value": float(value) + 1}
        showing = [panel for panel in panels if read <= set().union(*(series_of(t["expr"]) for t in panel["targets"]))]
        steps = [panel["fieldConfig"]["defaults"]["thresholds"]["steps"] for panel in showing]
        assert any(bound in each for each in steps), part
        if how == ">" and (histogram := next((n for n in read if n.endswith("_bucket")), "")):
            assert float(value) in buckets()[histogram.removesuffix("_bucket")], "a quantile is exact at a bound only"


def test_bounds_that_a_query_names_are_buckets() -> None:
    named = [
        (name, float(bound))
        for expr in EXPRESSIONS
        for name, bound in re.findall(r'(\w+)_bucket\{[^}]*\ble="([\d.]+)"', expr)
    ]
    assert named and all(bound in buckets()[name] for name, bound in named)


def test_every_panel_has_a_unit_and_a_description_that_leads_to_a_document() -> None:
    units = {"s", "percentunit", "short", "ops", "bytes"}
    for panel in PANELS:
        assert panel["fieldConfig"]["defaults"]["unit"] in units
        text, name, anchor = re.fullmatch(
            r"(.*\.) \[.*\]\(\$\{docs\}/([\w-]+\.md)(?:#(\w+))?\)", panel["description"]
        ).groups()
        document = (ROOT / "docs" / name).read_text().lower()
        assert text and (not anchor or f"\n## {anchor}\n" in document)


def test_the_dashboard_asks_the_prometheus_that_is_provisioned() -> None:
    sources = yaml.safe_load((FILE.parents[1] / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    (variable,) = (each for each in DASHBOARD["templating"]["list"] if each["type"] == "datasource")
    assert [source["uid"] for source in sources] == [variable["current"]["value"]]
    asked = [part["datasource"]["uid"] for panel in PANELS for part in (panel, *panel["targets"])]
    assert set(asked) == {f"${{{variable['name']}}}"}
