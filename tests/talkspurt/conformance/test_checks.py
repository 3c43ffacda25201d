"""Each check finds the one thing that an application does wrong, and blames nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from talkspurt.conformance.checks import CHECKS, Result, run_checks
from talkspurt.conformance.session import CannotConnect, Plan
from tests.talkspurt.conformance.applications import (
    AnswersEveryPrompt,
    AnswersWhole,
    Application,
    ClosesOnKeys,
    ClosesOnUnknown,
    CutsTheConnection,
    Deaf,
    EndsTheCall,
    GreetsAgain,
    HangsUp,
    KeepsSocketsOpen,
    LeavesTheGreetingOpen,
    NeverClosesTurns,
    SendsWhatCannotBeRead,
    SlowToAnswer,
    StreamsOn,
    serving,
)

LONG_S = 30.0
"""A wait for what comes at once."""

IN_VAIN_S = 2.0
"""A wait for what never comes."""

_CLOSED_EARLY = {(name, "skip", "the application does not keep a session open") for name in list(CHECKS)[1:]}

WRONG: list[tuple[Application, float, set[tuple[str, str, str]]]] = [
    (StreamsOn(), LONG_S, {("interrupt", "fail", r"\d+ tokens came .* s after interrupt, expected none after 2 s")}),
    (
        NeverClosesTurns(),
        IN_VAIN_S,
        {("prompt", "fail", "3 messages came after a prompt, none with last: true within 2 s; the turn stays open")},
    ),
    (
        Deaf(),
        IN_VAIN_S,
        {
            ("prompt", "fail", "nothing came within 2 s of a prompt with last: true, expected an answer"),
            ("interrupt", "skip", "there is no answer that could be interrupted"),
            ("unknown messages", "skip", "there is no answer that could show whether the application continues"),
        },
    ),
    (
        AnswersEveryPrompt(),
        LONG_S,
        {("partial prompt", "warn", "a prompt with last: false was answered, expected no answer; .*")},
    ),
    (
        ClosesOnUnknown(),
        LONG_S,
        {("unknown messages", "fail", "the application closed with 1003 within .* unknown type.*; expected an answer")},
    ),
    (ClosesOnKeys(), LONG_S, {("dtmf", "fail", "closed with 1011 after dtmf, expected an open socket")}),
    (
        GreetsAgain(),
        LONG_S,
        {("reconnect", "warn", "1 token came after setup with resumed: true, expected none; it greets again")},
    ),
    (
        LeavesTheGreetingOpen(),
        LONG_S,
        {("setup", "warn", "a greeting of 1 token came without last: true, expected it at its end")},
    ),
    (
        SendsWhatCannotBeRead(),
        LONG_S,
        {
            ("messages", "fail", r'play\.source is "", expected a string that is not empty( \(\d+ times\))?'),
            ("messages", "fail", r"binary message of 5 bytes, expected JSON text( \(\d+ times\))?"),
        },
    ),
    (
        HangsUp(),
        LONG_S,
        {
            ("setup", "fail", "closed with 1000 after setup, expected an open socket; this ends the call"),
            *_CLOSED_EARLY,
        },
    ),
    (
        EndsTheCall(),
        LONG_S,
        {("setup", "fail", "end came after setup, expected nothing or a greeting; .*"), *_CLOSED_EARLY},
    ),
    (
        KeepsSocketsOpen(),
        IN_VAIN_S,
        {("end", "warn", "no close frame came within 2 s of our close with 1000, expected one; .*")},
    ),
    (
        CutsTheConnection(),
        LONG_S,
        {("end", "warn", "the connection was cut after our close with 1000, expected a close frame")},
    ),
    (
        AnswersWhole(),
        LONG_S,
        {("interrupt", "skip", "the answer to --long-prompt came whole before the interrupt, .*")},
    ),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The UNIX socket of the application, to which all checks connect: its bytes need no time."""
    return tmp_path / "application"


async def checked(application: Application, path: Path, wait_s: float) -> list[Result]:
    async with serving(application, path) as url:
        return await run_checks(Plan(url, wait_s=wait_s, quiet_s=1.0, slow_s=LONG_S, stop_s=2.0, unix_path=str(path)))


@pytest.mark.virtual_time
async def test_a_right_application_passes_every_check(path: Path) -> None:
    application = Application()
    results = await checked(application, path, LONG_S)
    assert [(result.check, result.outcome) for result in results] == [(name, "pass") for name in (*CHECKS, "messages")]
    setups = [message for message in application.received if message["type"] == "setup"]
    resumed = [message["sessionId"] for message in setups if message.get("resumed")]
    assert len(resumed) == 1 and [message["sessionId"] for message in setups].count(resumed[0]) == 2


@pytest.mark.virtual_time
@pytest.mark.parametrize(("application", "wait_s", "expected"), WRONG, ids=[type(case[0]).__name__ for case in WRONG])
async def test_a_wrong_application_is_told_what_is_wrong_and_nothing_else(
    application: Application, wait_s: float, expected: set[tuple[str, str, str]], path: Path
) -> None:
    results = await checked(application, path, wait_s)
    told = [result for result in results if result.outcome != "pass"]
    assert len(told) == len(expected), told
    for check, outcome, detail in expected:
        assert any(
            (result.check, result.outcome) == (check, outcome) and re.fullmatch(detail, result.detail)
            for result in told
        ), (check, told)


@pytest.mark.virtual_time
async def test_a_late_first_token_is_a_warning(path: Path) -> None:
    async with serving(SlowToAnswer(), path) as url:
        results = await run_checks(Plan(url, wait_s=LONG_S, quiet_s=0.3, slow_s=0.5, unix_path=str(path)))
    prompt = next(result for result in results if result.check == "prompt")
    assert (prompt.outcome, prompt.detail) == (
        "warn",
        "the first token came after 0.6 s, expected at most 0.5 s; callers wait",
    )


async def test_nobody_there_is_said_at_once() -> None:
    with pytest.raises(CannotConnect, match="cannot connect"):
        await run_checks(Plan("ws://127.0.0.1:9/"))


def test_the_page_lists_the_checks_and_the_times() -> None:
    page = (Path(__file__).parents[3] / "docs/protocol.md").read_text()
    section = page.partition("## Is my application right?\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z ]+)` \|", section, re.MULTILINE) == [*CHECKS, "messages"]
    plan = Plan("")
    for said in (
        f"within {plan.slow_s:g} s",
        f"after {plan.stop_s:g} s;",
        f"({plan.wait_s:g} s)",
        f"({plan.quiet_s} s)",
    ):
        assert said in section
