"""configs/prometheus/alerts.yaml: the series that rules name exist, and every alert has its entry in the runbook.

``promtool test rules configs/prometheus/alerts_test.yaml`` shows when they fire.
"""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
GROUPS = yaml.safe_load((ROOT / "configs/prometheus/alerts.yaml").read_text())["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]


def labels_by_series() -> dict[str, set[str]]:
    """Series and their labels, as the page of the metrics lists them."""
    found = {}
    for name, kind, labels in re.findall(
        r"^\| `(\w+)` \| (\w+) \| (.*?) \|", (ROOT / "docs/metrics.md").read_text(), re.M
    ):
        each = set(re.findall(r"`(\w+)`", labels)) | {"instance", "job"}
        found[name] = each
        if kind == "histogram":
            found |= {f"{name}_bucket": each | {"le"}, f"{name}_sum": each, f"{name}_count": each}
    return found


def test_every_series_and_label_of_a_rule_exists() -> None:
    known = labels_by_series()
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    for rule in RULES:
        series = re.findall(r"\btalkspurt[_:][\w:]*", rule["expr"])
        assert series or "up{" in rule["expr"]
        assert not [name for name in series if name not in known and name not in recorded], rule
        for name, given in re.findall(r"(talkspurt_\w+)\{(.*?)\}", rule["expr"]):
            assert set(re.findall(r"(\w+)=", given)) <= known[name], rule
        labels = set().union(*(known.get(name, set()) for name in series)) | {"instance"}
        grouped = {word for by in re.findall(r"\b(?:by|on) ?\((.*?)\)", rule["expr"]) for word in by.split(", ")}
        assert grouped <= labels, rule


def test_every_alert_says_how_bad_it_is_and_has_its_entry_in_the_runbook() -> None:
    entries = re.findall(r"^## (\w+)$", (ROOT / "docs/runbook.md").read_text(), re.M)
    assert entries == [rule["alert"] for rule in ALERTS]
    for rule in ALERTS:
        assert rule["annotations"]["runbook_url"] == "{{ $externalLabels.docs }}/runbook.md#" + rule["alert"].lower()
        assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"]
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert named <= set().union(*labels_by_series().values())
