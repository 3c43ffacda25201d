"""Commands configure the log of the whole process. The next test gets it as it was."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def restored_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    for module, hook in ((sys, "excepthook"), (sys, "unraisablehook"), (threading, "excepthook")):
        monkeypatch.setattr(module, hook, getattr(module, hook))
    monkeypatch.setattr("talkspurt.log._json_lines", False)
    monkeypatch.setenv("TALKSPURT_LOG", "")
    monkeypatch.delenv("TALKSPURT_LOG")
    with warnings.catch_warnings():
        yield
        logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
