"""Sets up logging: a constant message and its `extra` fields, as text or as JSON lines, on standard error.

Nothing here filters caller data. Code that calls `log` never puts audio, text or digits into a message or a field.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

from gateway.config import LogConfig

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every record has. All others come from ``extra``."""


def configure(config: LogConfig, stream: TextIO | None = None) -> None:
    """Send all logging of this process to ``stream`` (default: standard error)."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if config.json_lines else TextFormatter())
    logging.basicConfig(level=config.level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    # A line per HTTP request is not needed, since metrics count requests; and its URL may contain a token.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    # They log a dozen lines per connectivity check, with callers' addresses and, at the lowest level, callers' words.
    for library in ("aioice", "aiortc"):
        logging.getLogger(library).setLevel(logging.WARNING)


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.000Z INFO gateway.call.session: call ended call=VX… reason=end``"""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, then the traceback if there is one."""
        fields = "".join(f" {key}={_plain(value)}" for key, value in _extra(record).items())
        line = f"{_timestamp(record)} {record.levelname} {record.name}: {_one_line(record.getMessage())}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One object a line: ``time level logger message``, the fields, and ``traceback``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return exactly one line."""
        entry: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {key: value for key, value in _extra(record).items() if key not in entry}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _timestamp(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _plain(value: object) -> str:
    """Return a field's value so that it can neither break the line nor look like two fields."""
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(" =\"'\n\r\t") else text


def _one_line(message: str) -> str:
    return message.replace("\n", "\\n").replace("\r", "\\r")
