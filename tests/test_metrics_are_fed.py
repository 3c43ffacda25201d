"""Every series of the registries is fed, and none by tests alone."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KINDS = {"Counter", "Gauge", "Histogram", "PrometheusHistogram"}


def words(tree: ast.AST) -> set[str]:
    """Every name and attribute in a piece of code."""
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name)
    }


def kept_series(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Variable and name of every series that is made and kept in an attribute or a global."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Attribute(attr=variable) | ast.Name(id=variable)],
                value=ast.Call(func=ast.Name(id=kind), args=[ast.Constant(value=str(name)), *_]),
            ) if kind in KINDS and variable != "limit":  # which is set where it is made
                yield variable, name


def used_of(receivers: Sequence[str], folders: Sequence[str], *, but: Path) -> set[str]:
    """Attributes that are called, or handed on, of anything with one of these names."""
    used = set()
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py") if path != but):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(value=ast.Attribute(attr=receiver) | ast.Name(id=receiver), attr=attribute):
                    if receiver.lstrip("_") in receivers:
                        used.add(attribute)
    return used


@pytest.mark.parametrize(
    ("file", "counter", "folders", "receivers"),
    [
        ("gateway/metrics.py", "Metrics", ("gateway", "sip_bridge", "talkspurt"), ("metrics", "meter")),
        ("gateway/sip_metrics.py", "SipMetrics", ("gateway", "sip_bridge", "talkspurt"), ("sip",)),
        ("gateway/store_metrics.py", "StoreMetrics", ("gateway", "talkspurt"), ("metrics", "meter", "stores")),
        ("tts_engine/metrics.py", "PrometheusObserver", ("tts_engine",), ("observer",)),
    ],
)
def test_every_series_is_fed(file: str, counter: str, folders: Sequence[str], receivers: Sequence[str]) -> None:
    tree = ast.parse((ROOT / file).read_text())
    (owner,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == counter)
    used = used_of(receivers, folders, but=ROOT / file)
    fed = {
        word
        for method in owner.body
        if isinstance(method, ast.FunctionDef) and method.name in used
        for word in words(method)
    }
    series = dict(kept_series(tree))
    assert len(series) >= 4
    assert [name for variable, name in series.items() if variable not in fed] == []
