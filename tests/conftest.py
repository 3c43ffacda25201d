"""With CI=true a missing tool fails the run instead of skipping what needs it."""

from __future__ import annotations

import os

import pytest

_OWN_ENVIRONMENT = ("vllm", "gpu", "asterisk")
"""Markers of tests that may be skipped: vLLM has an environment of its own, kernels want a GPU, Asterisk is in Debian's
unstable only, which is another one every day."""

_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not any(mark in report.keywords for mark in _OWN_ENVIRONMENT):
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("CI") == "true" and _skipped:
        print(f"\nskipped, although CI has to run everything: {', '.join(_skipped)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
