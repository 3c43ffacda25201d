"""Sets up logging: a constant message and its `extra` fields, as text or as JSON lines, on standard error.

Code that calls `log` never puts audio, text, digits or secrets into a message or a field. Exceptions of other code may
quote them, so a traceback here shows places and types, but no message.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TextIO

from gateway.config import LogConfig
from tts_engine.correlation import CORRELATION, known_route

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every record has. All others come from ``extra``."""


_FOR_CHILDREN = "TALKSPURT_LOG"
"""The environment variable in which child processes find the section ``log``."""


_ASKS_FOR_JSON = re.compile(r"""^[^#\n]*\bjson_lines["']?\s*:\s*["']?(?P<value>\$\{\w+\}|\w+)""", re.MULTILINE)

_json_lines = False


def print_line(text: str, stream: TextIO) -> None:
    """Print a line that is for people, such as the greeting. With ``log.json_lines``, print it as a line of the log."""
    if _json_lines:
        attributes = {"name": "talkspurt", "levelname": "INFO", "msg": text.strip()}
        text = JsonFormatter().format(logging.makeLogRecord(attributes))
    print(text, file=stream, flush=True)


def asks_for_json(path: Path | None, environment: Mapping[str, str]) -> bool:
    """Return True if a configuration that has not been read yet asks for JSON lines. Nothing else in it need be right,
    so that its errors are such lines too."""
    text = environment.get("TALKSPURT__LOG__JSON_LINES", "")
    if not text and path is not None:
        try:
            found = _ASKS_FOR_JSON.search(path.read_text("utf-8", errors="replace"))
        except OSError:
            return False
        text = found["value"] if found else ""
    name = re.fullmatch(r"\$\{(\w+)\}", text)
    return (environment.get(name[1], "") if name else text).lower() in ("true", "yes", "on", "1")


def configure_as_parent() -> None:
    """Log like the process that started this one. Without such a process, log warnings as text."""
    configure(LogConfig.model_validate_json(os.environ.get(_FOR_CHILDREN, '{"level": "warning"}')))


def configure(config: LogConfig, stream: TextIO | None = None) -> None:
    """Send all logging of this process, and its uncaught exceptions, to ``stream`` (default: standard error)."""
    global _json_lines
    _json_lines = config.json_lines
    os.environ[_FOR_CHILDREN] = config.model_dump_json()
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if config.json_lines else TextFormatter())
    logging.basicConfig(level=config.level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    # aiohttp's warnings quote the content of a client's form, and Python keeps each distinct warning for ever.
    warnings.filterwarnings("ignore", module=r"aiohttp\.multipart")
    # A line per HTTP request is not needed, since metrics count requests, and its URL may contain a token.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.server").addFilter(_is_no_bad_request)
    # They log a dozen lines per connectivity check, with callers' addresses and, at the lowest level, callers' words.
    for library in ("aioice", "aiortc"):
        logging.getLogger(library).setLevel(logging.WARNING)


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.000Z INFO gateway.call.session: call ended call=VX… reason=end``"""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, then the traceback if there is one."""
        fields = "".join(f" {key}={_plain(value)}" for key, value in _extra(record).items())
        line = f"{_timestamp(record)} {record.levelname} {record.name}: {_one_line(_message(record))}{fields}"
        return f"{line}\n{_traceback(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One object a line: ``time level logger message``, the fields, and ``traceback``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return exactly one line."""
        entry: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        entry |= {key: value for key, value in _extra(record).items() if key not in entry}
        if record.exc_info:
            entry["traceback"] = _traceback(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def _is_no_bad_request(record: logging.LogRecord) -> bool:
    """Return False for records about bytes that are no HTTP. Their sender gets an answer, and strangers could fill the
    log with such records."""
    # The module is named and not imported, because the engine's process does not load aiohttp.
    return not record.exc_info or type(record.exc_info[1]).__module__ != "aiohttp.http_exceptions"


def _message(record: logging.LogRecord) -> str:
    """Return the message. With an exception, return only its first line, since asyncio's second line quotes the
    exception."""
    message = record.getMessage()
    return message.partition("\n")[0] if record.exc_info else message


def _traceback(
    info: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
) -> str:
    """Return places and types of an exception, with its causes first."""
    parts: list[str] = []
    seen: set[int] = set()
    exc: BaseException | None = info[1]
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        number = f" [Errno {exc.errno}]" if isinstance(exc, OSError) and exc.errno is not None else ""
        places = "".join(traceback.format_tb(exc.__traceback__))
        parts.append(f"Traceback (most recent call last):\n{places}{type(exc).__name__}{number}")
        exc = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
    return "\n\n".join(reversed(parts))


def _uncaught(kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger(__name__).critical("uncaught exception", exc_info=(kind, exc, trace))


def _uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None:
        _uncaught(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)


def _unraisable(arguments: sys.UnraisableHookArgs) -> None:
    if arguments.exc_value is not None:
        _uncaught(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    """Return a record's fields, with ``call`` and ``route`` added if the logging task works for a call."""
    fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    working = CORRELATION.get()
    call_id = fields.pop("call", "") or working.call_id
    route = fields.pop("route", "") or (working.route if call_id == working.call_id else known_route(call_id))
    return {key: value for key, value in (("call", call_id), ("route", route)) if value} | fields


def _timestamp(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _plain(value: object) -> str:
    """Return a field's value so that it can neither break the line nor look like two fields."""
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(" =\"'\n\r\t") else text


def _one_line(message: str) -> str:
    return message.replace("\n", "\\n").replace("\r", "\\r")
