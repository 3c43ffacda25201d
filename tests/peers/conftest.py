"""The longest files first: with ``--dist loadfile`` the run ends when the file that was begun last does."""

from collections import Counter
from pathlib import Path

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Counter(item.path for item in items)
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    here = Path(__file__).parent
    items.sort(key=lambda item: (-slow[item.path], -tests[item.path]) if here in item.path.parents else (1, 0))
