"""docs/faults.md names tests; all of them exist."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/faults.md").read_text())


@cache
def defined_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_each_test_that_a_fault_names_exists() -> None:
    assert len(NAMED) > 20
    assert not [(path, name) for path, name in NAMED if name not in defined_in(path)]


def test_each_row_names_a_test() -> None:
    rows = [line for line in (ROOT / "docs/faults.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert not [row.split(" | ")[0].strip("| ") for row in rows if "::test_" not in row]
