"""Progress of long work: a bar on a terminal, now and then a line in a pipe, nothing for short work."""

import io

import pytest

from talkspurt.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, *, seconds: int) -> str:
    monkeypatch.setenv("TERM", "xterm")
    now = 0.0
    with progress("working", 40, unit="calls", stream=stream, clock=lambda: now) as report:
        for done in range(seconds * 2):
            now = done / 2
            report(done)
    return stream.getvalue()


def test_a_pipe_gets_a_line_after_a_second_and_then_every_five(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(io.StringIO(), monkeypatch, seconds=8) == "working: 2 of 40 calls\nworking: 12 of 40 calls\n"


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(Terminal(), monkeypatch, seconds=8)
    assert "working" in text and "of 40 calls" in text and "\x1b[" in text


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_short_work_is_silent(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(stream, monkeypatch, seconds=1) == ""
