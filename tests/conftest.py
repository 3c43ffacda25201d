"""The longest files run first. A run ends with a list of the missing peers and how to get them. With CI=true a missing
one fails the run.

A test marked ``virtual_time`` gets its own kind of event loop.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import tts_engine  # noqa: F401, sets the switches against reports of libraries, also of those that tests import
from tests.virtual_loop import VirtualLoop

# Read when torch and numpy are loaded: the machine's cores are shared by the processes that run the tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Selenium's search for drivers counts its users, and would load a driver that is missing.
os.environ |= {"SE_AVOID_STATS": "true", "SE_OFFLINE": "true"}

if find_spec("hypothesis"):  # vLLM's environment has none
    from hypothesis import HealthCheck, settings

    # The same examples in every run, of any machine, and no verdict on its speed. tests/fuzz searches further.
    settings.register_profile(
        "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("repeatable")

_OWN_ENVIRONMENT = ("vllm", "gpu", "asterisk", "freeswitch")
"""Markers of tests that may be skipped: vLLM has an environment of its own, kernels want a GPU, Asterisk is in Debian's
unstable only, which is another one every day, and FreeSWITCH has to be built."""

_forbidden: list[str] = []
"""Tests that were skipped although this run has to have all that they need."""


_NETWORKS = Path(__file__).parent / "tts_engine"
"""Few tests that compute for long. Elsewhere a file takes the longer, the more tests it has."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the longest files to the front: with ``--dist loadfile`` a run ends when its last file does."""
    tests = Counter(item.path for item in items)
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (-slow[item.path], _NETWORKS not in item.path.parents, -tests[item.path]))


def pytest_collection_finish() -> None:
    """Keep the collected tests out of every later search for garbage, which would walk through all of them."""
    gc.collect()
    gc.freeze()


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualLoop} if item.get_closest_marker("virtual_time") else {"real": asyncio.new_event_loop}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and os.environ.get("CI") == "true" and not any(m in report.keywords for m in _OWN_ENVIRONMENT):
        _forbidden.append(report.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # pytest's own ``-rs`` has a line for each test that carries a marker: a hundred where there is no phone.
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    if reasons:
        terminalreporter.section("skipped, and what would run it")
    for reason, tests in sorted(reasons.items()):
        terminalreporter.line(f"{tests:4d}  {reason}")
    if _forbidden:
        terminalreporter.line(f"skipped, although CI has to run everything: {', '.join(_forbidden)}", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _forbidden:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
