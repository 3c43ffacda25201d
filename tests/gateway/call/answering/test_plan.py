"""A route's ``answer``, through a whole session on the virtual clock."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.config import AnswerConfig
from gateway.seams.messages import End, SendDigits, Text
from gateway.seams.uplink import LineTone
from tests.gateway.call.virtual_session import VirtualSession
from tests.virtual_loop import VirtualLoop

GREETING = "Hi this is Ann"
HELLO = (("silence", 0.5), ("word", 0.6), ("silence", 3.0))
RECORDING = (("silence", 0.5), ("word", 6.5))
BEEP = LineTone(kind="beep", length_s=0.4, ago_s=0.0, hz=(1000,))


class Played:
    """The lines of a call and the times of its events."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def at(self, pattern: str) -> float:
        """Return the time of the first line that has a match."""
        (first, *_) = (line for line in self.lines if re.search(pattern, line))
        return float(first.partition(" ")[0])

    def has(self, pattern: str) -> bool:
        return any(re.search(pattern, line) for line in self.lines)

    def finished(self) -> list[str]:
        """Return the turns that were spoken whole, in order."""
        return re.findall(r"turn='(\w+)', event='finished'", "\n".join(self.lines))


def played(scene: Callable[[VirtualSession], Awaitable[None]], *, says: str = "", **answer: Any) -> Played:
    async def run() -> list[str]:
        route = {"welcome_greeting": GREETING, "answer": answer, "language": "en-US"}
        call = VirtualSession(route, recogniser=bool(says), direction="outbound")
        call.says, call.partials = [says], 0.0
        await scene(call)
        return await call.finish()

    loop = VirtualLoop()
    try:
        return Played(loop.run_until_complete(run()))
    finally:
        loop.close()


async def hears(call: VirtualSession, *sounds: tuple[str, float]) -> None:
    for kind, seconds in sounds:
        if kind != "silence":
            call.utters(kind, round(seconds / 0.032))
        await call.run(seconds)


def beep(call: VirtualSession) -> None:
    call.session.caller.on_tone(BEEP, ended_at=call.now)


def test_without_the_section_the_bot_speaks_at_once() -> None:
    call = played(lambda call: hears(call, *RECORDING))
    assert call.at("frame") < 0.1


def test_the_greeting_waits_for_the_person_and_its_sound_is_ready() -> None:
    call = played(lambda call: hears(call, *HELLO), wait=True)
    assert call.at("frame") == pytest.approx(0.5 + 0.6 + 0.8, abs=0.1)
    assert call.at("frame") - call.at("answered by human") < 0.03
    assert call.finished() == ["greeting"]


def test_the_text_and_the_end_of_a_manager_wait_too() -> None:
    async def scene(call: VirtualSession) -> None:
        await call.run(0.1)
        call.say(Text(token="Your order is ready", last=True), End())
        await hears(call, *HELLO)
        await call.run(3)

    call = played(scene, wait=True)
    assert call.finished() == ["greeting", "t1"]
    assert call.has("hang_up end")


def test_silence_ends_the_wait() -> None:
    call = played(lambda call: hears(call, ("silence", 12.0)), wait=True)
    assert call.at("frame") == pytest.approx(8.0, abs=0.1)


@pytest.mark.parametrize("wait", [True, False])
def test_a_machine_gets_the_message_after_its_beep_and_the_call_ends(wait: bool) -> None:
    async def scene(call: VirtualSession) -> None:
        await call.run(0.1)
        call.say(Text(token="Your order is ready", last=True), End())
        await hears(call, *RECORDING)
        call.note("tone")
        beep(call)
        await call.run(5)

    call = played(scene, wait=wait, message="Please call us back")
    assert call.finished()[-1:] == ["message"]
    spoken_at = call.at(r"frame message/")
    assert call.at("tone") <= spoken_at < call.at("tone") + 0.1
    assert call.at("hang_up end") > spoken_at
    if wait:
        assert call.at("frame") == spoken_at


def test_a_machine_without_a_beep_gets_the_message_after_a_silence() -> None:
    call = played(lambda call: hears(call, *RECORDING, ("silence", 12.0)), message="Please call us back", wait=True)
    assert call.at("frame") == pytest.approx(0.5 + 6.5 + 5.0 + 0.3, abs=0.2)
    assert call.has("hang_up end")


def test_a_machine_that_never_falls_silent_ends_the_call() -> None:
    call = played(lambda call: hears(call, ("silence", 0.5), ("word", 90.0)), message="Please call us back", wait=True)
    assert call.at("hang_up end") == pytest.approx(66.5, abs=1)
    assert not call.has("frame")


def test_a_person_by_time_who_is_a_machine_by_its_beep_is_interrupted() -> None:
    async def scene(call: VirtualSession) -> None:
        await hears(call, ("silence", 0.5), ("word", 0.6), ("silence", 1.0))
        beep(call)
        await call.run(5)

    call = played(scene, wait=True, message="Please call us back")
    assert call.has("answered by human")
    assert call.finished() == ["message"]


def test_an_answer_that_is_not_wanted_ends_the_call() -> None:
    call = played(lambda call: hears(call, *RECORDING), wait=True, hang_up=["machine"])
    assert call.at("hang_up end") < 7.0
    assert not call.has("frame")


def test_a_person_who_speaks_for_long_is_not_hung_up_on_and_gets_the_greeting() -> None:
    scene = (("silence", 0.5), ("word", 4.5), ("silence", 3.0))
    call = played(lambda call: hears(call, *scene), wait=True, message="Please call us back", hang_up=["ivr"])
    assert call.has("answered by machine") and call.finished() == ["greeting"]
    assert not call.has("hang_up")


def test_a_screening_assistant_gets_its_text_and_then_the_person_the_greeting() -> None:
    async def scene(call: VirtualSession) -> None:
        await call.run(0.1)
        call.say(Text(token="Your order is ready", last=True))
        await hears(call, ("silence", 0.5), ("word", 4.0), ("silence", 6.0))
        call.says = ["Hello"]
        await hears(call, *HELLO)
        await call.run(5)

    says = "Please record your name and reason for calling"
    call = played(scene, says=says, wait=True, screening="Ann from the bakery")
    assert call.finished() == ["screening", "greeting", "t1"]
    assert call.at("frame screening/") > 0.5 + 4.0 + 0.7
    assert call.at("frame greeting/") >= call.at("answered by human")


def test_a_queue_hears_keys_only_and_answers_to_its_announcements_are_dropped() -> None:
    async def scene(call: VirtualSession) -> None:
        await hears(call, ("silence", 0.5), ("word", 3.5), ("silence", 3.0))
        call.say(SendDigits(digits="1"), Text(token="I need a person", last=True))
        await hears(call, ("silence", 10.0))
        call.says = ["Hello"]
        await hears(call, *HELLO)
        call.say(Text(token="Your order is ready", last=True))
        await call.run(5)

    call = played(scene, says="Please hold, your call is important to us", wait=True)
    assert call.at("frame tones/") < 8
    assert call.at("frame greeting/") >= call.at("answered by human") > 17
    assert call.finished() == ["greeting", "t3"]


def test_an_incoming_call_does_not_wait() -> None:
    async def run() -> list[str]:
        call = VirtualSession({"welcome_greeting": GREETING, "answer": {"wait": True}})
        await call.run(1)
        return await call.finish()

    loop = VirtualLoop()
    assert Played(loop.run_until_complete(run())).at("frame") < 0.1
    loop.close()


def test_a_text_that_would_never_be_spoken_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"answer\.message would never be spoken"):
        AnswerConfig(message="Please call us back", hang_up=("machine",))
