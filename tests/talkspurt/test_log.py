"""The form of a log line."""

import asyncio
import contextvars
import io
import json
import logging
import re
import sys
import threading
from pathlib import Path

import aiohttp.multipart
import pytest
from aiohttp import web

from gateway.config import LogConfig
from talkspurt.cli import main
from talkspurt.log import asks_for_json, configure, configure_as_parent, print_line
from tts_engine.correlation import CORRELATION, Correlation, remember_route

SAID = "xylophonic 4929123456781234"


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


def test_lines_for_people_are_lines_of_the_log_where_these_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogConfig(json_lines=True), io.StringIO())
    print_line("  console  http://127.0.0.1:8080/", sys.stdout)
    assert json.loads(capsys.readouterr().out)["message"] == "console  http://127.0.0.1:8080/"
    configure(LogConfig(), io.StringIO())
    print_line("  console  http://127.0.0.1:8080/", sys.stdout)
    assert capsys.readouterr().out == "  console  http://127.0.0.1:8080/\n"


def test_text_is_a_constant_and_its_fields() -> None:
    first, second, *traceback = written(LogConfig()).splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO gateway\.call\.session: call ended "
        r'call=VX1 why="a \\"b\\"\\nc" turns=3',
        first,
    )
    assert second.endswith("ERROR gateway.call.session: turn failed call=VX1")
    assert traceback[0].startswith("Traceback") and traceback[-1] == "ValueError"


def test_json_is_one_object_a_line() -> None:
    first, second = (json.loads(line) for line in written(LogConfig(json_lines=True)).splitlines())
    assert {k: v for k, v in first.items() if k != "time"} == {
        "level": "info", "logger": "gateway.call.session", "message": "call ended",
        "call": "VX1", "why": 'a "b"\nc', "turns": 3,
    }  # fmt: skip
    assert second["traceback"].endswith("ValueError")


@pytest.mark.parametrize("json_lines", [True, False])
def test_a_line_names_the_call_that_its_task_works_for_unless_it_names_one_itself(json_lines: bool) -> None:
    stream = io.StringIO()
    configure(LogConfig(json_lines=json_lines), stream)
    log = logging.getLogger("gateway")

    def work() -> None:
        CORRELATION.set(Correlation("VX2", route="desk"))
        log.info("line down", extra={"why": "x"})
        log.info("line down", extra={"call": "", "why": "x"})
        log.info("line down", extra={"call": "VX3", "why": "x"})

    contextvars.copy_context().run(work)
    log.info("line down", extra={"call": "", "why": "x"})
    lines = stream.getvalue().splitlines()
    if json_lines:
        assert [json.loads(line).get("call") for line in lines] == ["VX2", "VX2", "VX3", None]
        assert [json.loads(line).get("route") for line in lines] == ["desk", "desk", None, None]
    else:
        ends = [line.partition("line down ")[2] for line in lines]
        assert ends == ["call=VX2 route=desk why=x", "call=VX2 route=desk why=x", "call=VX3 why=x", "why=x"]


def test_a_line_about_a_call_names_its_route_whichever_task_logs_it() -> None:
    stream = io.StringIO()
    configure(LogConfig(json_lines=True), stream)
    remember_route("VX7", "desk")
    logging.getLogger("gateway").warning("line down", extra={"call": "VX7"})
    assert json.loads(stream.getvalue())["route"] == "desk"


@pytest.mark.parametrize(
    ("text", "json_lines"),
    [
        ("log: {json_lines: true}", True),
        ("log:\n  level: debug\n  json_lines: yes  # for the collector\nroutes: {", True),
        ("log:\n  'json_lines' : '${JSON}'", True),
        ("log:\n  json_lines: false", False),
        ("log: {}  # json_lines: true", False),
        ("", False),
    ],
)
def test_errors_of_the_configuration_are_json_if_it_asks_for_json(tmp_path: Path, text: str, json_lines: bool) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    assert asks_for_json(file, {"JSON": "true"}) == json_lines
    assert asks_for_json(file, {"JSON": "true", "TALKSPURT__LOG__JSON_LINES": "on"})
    assert not asks_for_json(tmp_path / "none.yaml", {})


def test_a_wrong_configuration_is_told_as_a_line_of_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("log: {json_lines: true}\nserver: {prot: 1}")
    assert main(["serve", "-c", str(file)]) == 2
    assert "did you mean" in json.loads(capsys.readouterr().err)["message"]


def test_the_level_counts() -> None:
    assert "too little" in written(LogConfig(level="debug"))
    assert "call ended" not in written(LogConfig(level="warning"))


def failed(stream: io.StringIO) -> None:
    """A fault of a kind that quotes what was said, with a cause that does too."""
    try:
        try:
            raise OSError(2, SAID, f"/tmp/{SAID}")
        except OSError as exc:
            raise ValueError(SAID) from exc
    except ValueError as exc:
        logging.getLogger("gateway").exception("turn failed")
        # asyncio's own message: the task with its exception on a second line
        message = f"Task exception was never retrieved\nfuture: <Task exception={exc!r}>"
        logging.getLogger("asyncio").error(message, exc_info=exc)
        sys.excepthook(ValueError, exc, exc.__traceback__)
        threading.excepthook(threading.ExceptHookArgs((ValueError, exc, exc.__traceback__, None)))
        error = type("Unraisable", (), {"exc_type": ValueError, "exc_value": exc, "exc_traceback": exc.__traceback__})
        sys.unraisablehook(error)  # type: ignore[arg-type]  # only the interpreter makes the real one


@pytest.mark.parametrize("json_lines", [True, False])
def test_what_an_exception_says_is_never_written_only_where_and_of_which_kind_it_is(json_lines: bool) -> None:
    stream = io.StringIO()
    configure(LogConfig(json_lines=json_lines), stream)
    failed(stream)
    text = stream.getvalue()
    assert text.count("FileNotFoundError [Errno 2]") == text.count("in failed") / 2 == 5
    assert "Task exception was never retrieved" in text and text.count("uncaught exception") == 3
    assert not re.search("xylophonic|4929", text)


def test_a_child_process_logs_as_its_parent(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogConfig(level="debug", json_lines=True))
    configure_as_parent()  # in the child, which has the parent's environment
    logging.getLogger("tts_engine").debug("engine serves")
    assert json.loads(capsys.readouterr().err)["message"] == "engine serves"


def test_without_a_parent_warnings_are_logged_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    configure_as_parent()
    logging.getLogger("tts_engine").info("engine serves")
    logging.getLogger("tts_engine").warning("slow")
    assert capsys.readouterr().err.endswith("Z WARNING tts_engine: slow\n")


def test_what_a_form_quotes_is_neither_logged_nor_kept() -> None:
    stream = io.StringIO()
    configure(LogConfig(), stream)
    for number in range(3):
        aiohttp.multipart.parse_content_disposition(f"form-data; {SAID} {number}")
    assert SAID not in stream.getvalue()
    kept = getattr(aiohttp.multipart, "__warningregistry__", {})
    assert not any(SAID in str(key) for key in kept)


async def test_bytes_that_are_no_http_are_answered_and_not_logged() -> None:
    stream = io.StringIO()
    configure(LogConfig(), stream)
    runner = web.AppRunner(web.Application(), access_log=None)
    await runner.setup()
    server = web.TCPSite(runner, "127.0.0.1", 0)
    await server.start()
    reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
    writer.write(b"GET / HTTP/1.1\r\nno header\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.0 400")
    writer.close()
    await runner.cleanup()
    logging.getLogger("aiohttp.server").error("another fault", exc_info=ValueError("ours"))
    lines = stream.getvalue().splitlines()
    assert "another fault" in lines[0], lines
