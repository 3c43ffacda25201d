"""The checks of a dialogue application. Each check is a call of its own, over a new session.

The gateway's own reader parses the application's messages, so the gateway understands what passes here. A check passes,
fails, warns (the call continues, but a caller notices), or is skipped (the application gave no occasion for it).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from gateway.seams.messages import Dtmf, End, Interrupt, Prompt, Text
from talkspurt.conformance.session import NO_CLOSE_FRAME, NO_CODE, CannotConnect, CheckedSession, Plan

Outcome = Literal["pass", "fail", "warn", "skip"]
Verdict = tuple[Outcome, str]
"""The outcome of a check, and a sentence that says what arrived and what was expected."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one check."""

    check: str
    outcome: Outcome
    detail: str = ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class Application:
    """The application under test: opens sessions, and keeps what the first checks have learned."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.talks = True
        """True if it keeps a session open. If not, no other check is possible."""
        self.greeting_turns = 0
        """Number of turns that it speaks by itself when a call begins."""
        self.greeting_ends = True
        """True if that greeting is complete, so that a check can wait for its end."""
        self.answers = True
        """True if it answers a final prompt."""
        self.problems: Counter[str] = Counter()
        """Unreadable messages by description, with their number."""
        self._sessions: list[CheckedSession] = []

    def session(self, *, digits: str = "", resumed: bool = False) -> CheckedSession:
        made = CheckedSession(self.plan, digits=digits, resumed=resumed)
        self._sessions.append(made)
        return made

    async def greeted(self, session: CheckedSession) -> None:
        """Wait until the application has spoken its greeting, as in the first session."""
        if self.greeting_ends:
            await session.until(lambda: session.closed_turns() >= self.greeting_turns, self.plan.wait_s)
        else:
            await session.until_quiet(self.plan.wait_s)

    def collect_problems(self) -> None:
        """Count the unreadable messages since the last call."""
        for session in self._sessions:
            self.problems.update(session.problems)
        self._sessions.clear()


async def check_setup(app: Application) -> Verdict:
    """Check that the application takes ``setup`` and waits for the caller."""
    async with app.session() as call:
        paused = await call.until_quiet(app.plan.wait_s)
        app.greeting_turns = call.closed_turns()
        greeting = [message for message in call.since(0) if isinstance(message, Text)]
        if not call.open:
            app.talks = False
            return "fail", f"closed with {call.close_code} after setup, expected an open socket; this ends the call"
        if any(isinstance(message, End) for message in call.since(0)):
            app.talks = False
            return "fail", "end came after setup, expected nothing or a greeting; this ends the call"
        if not paused:
            app.greeting_ends = False
            return "warn", f"the greeting continued for {app.plan.wait_s:g} s, expected a pause for the caller"
        if greeting and not greeting[-1].last:
            app.greeting_ends = False
            return (
                "warn",
                f"a greeting of {_count(len(greeting), 'token')} came without last: true, expected it at its end",
            )
        return "pass", f"greets in {_count(app.greeting_turns, 'turn')}" if app.greeting_turns else "does not greet"


async def check_prompt(app: Application) -> Verdict:
    """Check that a final prompt is answered by a turn that is closed."""
    plan = app.plan
    async with app.session() as call:
        await app.greeted(call)
        took_s, number = await call.ask(plan.prompt)
        if took_s is None:
            app.answers = False
            return "fail", f"{call.silence} within {plan.wait_s:g} s of a prompt with last: true, expected an answer"
        if not await call.until(lambda: call.closed_turns(number) > 0, plan.wait_s):
            came = f"{_count(len(call.since(number)), 'message')} came" if call.open else call.silence
            return "fail", f"{came} after a prompt, none with last: true within {plan.wait_s:g} s; the turn stays open"
        await call.until_quiet(plan.wait_s)  # messages after the answer have to be readable too
        if took_s > plan.slow_s:
            return (
                "warn",
                f"the first token came after {took_s:.1f} s, expected at most {plan.slow_s:g} s; callers wait",
            )
        return "pass", f"the first token came after {took_s * 1000:.0f} ms"


async def check_partial_prompt(app: Application) -> Verdict:
    """Check that prompts that are not final are not answered."""
    async with app.session() as call:
        await app.greeted(call)
        number = len(call.messages)
        await call.send(Prompt(voice_prompt="Hello can", lang="en-US", last=False))
        if await call.more(number, app.plan.quiet_s):
            return "warn", "a prompt with last: false was answered, expected no answer; leave partial_prompts off"
        if not call.open:
            return "fail", f"closed with {call.close_code} after a prompt with last: false, expected an open socket"
        return "pass", "not answered"


async def check_dtmf(app: Application) -> Verdict:
    """Check that a key does no harm."""
    async with app.session() as call:
        await app.greeted(call)
        number = len(call.messages)
        await call.send(Dtmf(digit="5"))
        answered = await call.more(number, app.plan.quiet_s)
        if not call.open:
            return "fail", f"closed with {call.close_code} after dtmf, expected an open socket"
        return "pass", "answers keys" if answered else "does not answer keys"


async def check_interrupt(app: Application) -> Verdict:
    """Check that the application stops its stream after an interrupt, and answers the next prompt."""
    plan = app.plan
    if not app.answers:
        return "skip", "there is no answer that could be interrupted"
    async with app.session() as call:
        await app.greeted(call)
        took_s, number = await call.ask(plan.long_prompt)
        if took_s is None:
            return "skip", "--long-prompt was not answered, so there was nothing to interrupt"
        whole = call.closed_turns(number) > 0
        heard = next((message.token for message in call.since(number) if isinstance(message, Text)), "")
        cut_at, sent = asyncio.get_running_loop().time(), len(call.messages)
        await call.send(Interrupt(utterance_until_interrupt=heard, duration_until_interrupt_ms=300))
        await call.until_quiet(plan.stop_s + plan.quiet_s)
        if not call.open:
            return "fail", f"closed with {call.close_code} after interrupt, expected an open socket"
        # An empty token with `last: true` only closes the turn and is not heard.
        after_s = [at - cut_at for at, message in call.messages[sent:] if isinstance(message, Text) and message.token]
        late_s = [each for each in after_s if each > plan.stop_s]
        if late_s:
            return "fail", (
                f"{_count(len(late_s), 'token')} came {late_s[0]:.1f} to {late_s[-1]:.1f} s after interrupt, "
                f"expected none after {plan.stop_s:g} s"
            )
        took_s, _ = await call.ask(plan.prompt)
        if took_s is None:
            return "fail", f"{call.silence} within {plan.wait_s:g} s of the prompt after interrupt, expected an answer"
        if whole:
            return "skip", "the answer to --long-prompt came whole before the interrupt, so there was no stream to stop"
        last = f"the last token came {after_s[-1] * 1000:.0f} ms" if after_s else "no token came"
        return "pass", f"{last} after interrupt"


async def check_unknown(app: Application) -> Verdict:
    """Check that the application ignores unknown types and fields, and an error."""
    if not app.answers:
        return "skip", "there is no answer that could show whether the application continues"
    async with app.session() as call:
        await app.greeted(call)
        await call.send_text('{"type":"somethingNew","value":{"a":[1]}}')
        await call.send_text('{"type":"info","name":"agentSpeaking","value":"off","later":true}')
        await call.send_text('{"type":"error","description":"Invalid message received, code: 64107, {} (conformance)"}')
        took_s, _ = await call.ask(app.plan.prompt)
        if took_s is None:
            return "fail", (
                f"{call.silence} within {app.plan.wait_s:g} s of a prompt behind an unknown type, info and error; "
                "expected an answer"
            )
        return "pass", "passed over"


async def check_reconnect(app: Application) -> Verdict:
    """Check that the application continues the session after a lost connection, and does not greet again."""
    async with app.session() as call:
        await app.greeted(call)
        call.drop()
    async with app.session(digits=call.digits, resumed=True) as again:
        await again.until_quiet(app.plan.wait_s)
        if not again.open:
            return "fail", f"closed with {again.close_code} after setup with resumed: true, expected an open socket"
        spoken = sum(isinstance(message, Text) for message in again.since(0))
        if app.answers:
            took_s, _ = await again.ask(app.plan.prompt)
            if took_s is None:
                return "fail", (
                    f"{again.silence} within {app.plan.wait_s:g} s of a prompt after the reconnect, expected an answer"
                )
        if spoken and (app.greeting_turns or not app.greeting_ends):
            return (
                "warn",
                f"{_count(spoken, 'token')} came after setup with resumed: true, expected none; it greets again",
            )
        return "pass", "continues the session"


async def check_end(app: Application) -> Verdict:
    """Check that the application answers our close at the end of a call."""
    async with app.session() as call:
        await app.greeted(call)
        if not call.open:
            return "fail", f"closed with {call.close_code} before the call was over, expected an open socket"
        code = await call.close(app.plan.wait_s)
        if code is None:
            return "warn", (
                f"no close frame came within {app.plan.wait_s:g} s of our close with 1000, expected one; "
                "sockets of calls that are over pile up"
            )
        if code == NO_CLOSE_FRAME:
            return "warn", "the connection was cut after our close with 1000, expected a close frame"
        if code not in (1000, 1001, NO_CODE):
            return "warn", f"our close with 1000 was answered with {code}, expected 1000"
        return "pass", "answers our close"


CHECKS: Mapping[str, Callable[[Application], Awaitable[Verdict]]] = {
    "setup": check_setup,
    "prompt": check_prompt,
    "partial prompt": check_partial_prompt,
    "dtmf": check_dtmf,
    "interrupt": check_interrupt,
    "unknown messages": check_unknown,
    "reconnect": check_reconnect,
    "end": check_end,
}
"""The checks in their order. The first two learn facts that the others need."""


async def run_checks(plan: Plan, tell: Callable[[Result], None] = lambda result: None) -> list[Result]:
    """Run all checks, one after the other. ``tell`` gets each result at once.

    Returns:
        One result for each of ``CHECKS``, then one named ``messages`` for each kind of unreadable message, or one that
        says that there was none.

    Raises:
        CannotConnect: the first connection failed. A later one that fails is a failed check.
    """
    results: list[Result] = []

    def note(check: str, outcome: Outcome, detail: str) -> None:
        results.append(Result(check, outcome, detail))
        tell(results[-1])

    app = Application(plan)
    for name, check in CHECKS.items():
        if not app.talks:
            note(name, "skip", "the application does not keep a session open")
            continue
        try:
            note(name, *await check(app))
        except CannotConnect as exc:
            if not results:
                raise
            note(name, "fail", str(exc))
        app.collect_problems()
    for problem, times in app.problems.items():
        note("messages", "fail", f"{problem} ({times} times)" if times > 1 else problem)
    if not app.problems:
        note("messages", "pass", "all messages can be read")
    return results
