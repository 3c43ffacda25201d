"""What a log line looks like."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from gateway.config import LogConfig
from talkspurt.log import configure


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:], root.level = before[0], before[1]


def written(config: LogConfig) -> str:
    stream = io.StringIO()
    configure(config, stream)
    log = logging.getLogger("gateway.call.session")
    log.debug("too little")
    log.info("call ended", extra={"call": "VX1", "why": 'a "b"\nc', "turns": 3})
    try:
        raise ValueError("bad")
    except ValueError:
        log.exception("turn failed", extra={"call": "VX1"})
    return stream.getvalue()


def test_text_is_a_constant_and_its_fields() -> None:
    first, second, *traceback = written(LogConfig()).splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO gateway\.call\.session: call ended "
        r'call=VX1 why="a \\"b\\"\\nc" turns=3',
        first,
    )
    assert second.endswith("ERROR gateway.call.session: turn failed call=VX1")
    assert traceback[0].startswith("Traceback") and traceback[-1] == "ValueError: bad"


def test_json_is_one_object_a_line() -> None:
    first, second = (json.loads(line) for line in written(LogConfig(json_lines=True)).splitlines())
    assert {k: v for k, v in first.items() if k != "time"} == {
        "level": "info", "logger": "gateway.call.session", "message": "call ended",
        "call": "VX1", "why": 'a "b"\nc', "turns": 3,
    }  # fmt: skip
    assert second["traceback"].endswith("ValueError: bad")


def test_the_level_counts() -> None:
    assert "too little" in written(LogConfig(level="debug"))
    assert "call ended" not in written(LogConfig(level="warning"))
