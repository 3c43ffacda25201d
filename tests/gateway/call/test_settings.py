"""``config``, ``hints`` and ``language`` change a running call. Where the published sources leave a rule
open, the name of the test says "inferred"."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.call.hearing.echo import is_echo, may_become_echo
from gateway.call.known_voices import KnownVoices
from gateway.call.settings import hearing_settings
from gateway.config import LimitsConfig
from gateway.dialogue.wire import decode
from gateway.seams.messages import ConfigChange, Prompt, Text
from tests.gateway.call.hearing.test_listening import ListeningCall
from tests.gateway.call.virtual_session import VirtualSession
from tts_engine.api import VoiceInfo
from tts_engine.errors import Unavailable


def said(call: VirtualSession, what: str) -> list[str]:
    return [line.split(" ", 1)[1] for line in call.lines if what in line]


def send(call: VirtualSession, **message: Any) -> None:
    """Send the message as JSON, the way a manager does."""
    call.say(decode(json.dumps(message), limits=LimitsConfig(), multiplexed=False)[1])


@pytest.mark.virtual_time
async def test_config_counts_for_the_turns_after_it_inferred() -> None:
    call = VirtualSession({})
    send(call, type="text", token="one two three four five six seven.", last=True)
    send(call, type="config", interruptible="none")
    send(call, type="text", token="eight nine ten eleven.", last=True)
    await call.run(0.3)
    call.session.on_digit("1")
    await call.run(0.3)
    call.session.on_digit("2")
    await call.run(3.0)
    assert len(said(call, "tell Interrupt")) == 1  # the first turn, which was accepted before
    assert said(call, "finished") and not said(call, "digit='2'")
    await call.finish()


@pytest.mark.virtual_time
async def test_keys_are_told_and_interrupt_only_while_they_are_detected() -> None:
    call = VirtualSession({"dtmf_detection": False})
    call.session.on_digit("1")
    send(call, type="config", dtmfDetection=True)
    call.session.on_digit("2")
    send(call, type="config", settings={"dtmf_detection": "false"})
    call.session.on_digit("3")
    await call.run(0.1)
    assert said(call, "tell Dtmf") == ["tell Dtmf(digit='2')"]
    await call.finish()


@pytest.mark.virtual_time
async def test_the_manager_is_told_of_a_change_where_it_asked_for_that_inferred() -> None:
    call = VirtualSession({"events": ["config-updated"]}, recogniser=True)
    send(call, type="config", preemptible=True, speechTimeout="900", profanityFilter=True)
    send(call, type="hints", hints="Berlin, Ulm")
    send(call, type="language", ttsLanguage="en-GB")
    quiet = VirtualSession({}, recogniser=True)
    send(quiet, type="config", preemptible=True)
    await call.run(0.1)
    told = [line.split("value='", 1)[1].split("', turn=")[0] for line in said(call, "configUpdated")]
    assert [json.loads(value) for value in told] == [
        {"preemptible": True, "speechTimeout": 900},
        {"hints": ["Berlin", "Ulm"]},
        {"ttsLanguage": "en-GB"},
    ]
    assert not said(quiet, "configUpdated")
    for each in (call, quiet):
        await each.finish()


@pytest.mark.virtual_time
async def test_the_manager_is_told_of_another_caller_where_it_asked_for_that() -> None:
    call, quiet = VirtualSession({"events": ["caller-changed"]}), VirtualSession({})
    for each in (call, quiet):
        each.session.on_caller_changed("+4930222", "Bob")
        await each.run(0.1)
    (told,) = said(call, "callerChanged")
    assert json.loads(told.split("value='", 1)[1].split("', turn=")[0]) == {"from": "+4930222", "callerName": "Bob"}
    assert not said(quiet, "callerChanged")
    for each in (call, quiet):
        await each.finish()


@pytest.mark.virtual_time
async def test_settings_without_effect_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    call = VirtualSession({})
    for _ in range(3):
        send(call, type="config", profanityFilter=True, partialPrompts=True, customThing={"a": 1})
    found = [record.__dict__["settings"] for record in caplog.records if record.message == "settings without effect"]
    assert found == ["profanityFilter partialPrompts"]
    assert not said(call, "tell Error")
    await call.finish()


@pytest.mark.virtual_time
async def test_a_language_that_no_voice_speaks_is_an_error_at_once_and_changes_nothing() -> None:
    call = VirtualSession({"events": ["config-updated"]})
    call.session._configuration._voice_problem = lambda route, language, voice: (
        "not spoken" if language == "xx-YY" else ""
    )
    await call.run(0.1)
    send(call, type="language", ttsLanguage="xx-YY", transcriptionLanguage="en-IN", voice="v")
    assert "language.ttsLanguage: not spoken" in said(call, "tell Error")[0]
    assert not said(call, "configUpdated")
    send(call, type="text", token="hello", last=True)
    await call.run(0.5)
    assert "language=en-US" in said(call, "engine t1")[0]
    await call.finish()


@pytest.mark.virtual_time
async def test_a_language_is_declared_and_switched_to_in_one_message_inferred() -> None:
    call = VirtualSession({})
    send(call, type="language", ttsLanguage="fr-FR", voice="amelie")
    send(call, type="text", token="bonjour", last=True)
    send(call, type="language", ttsLanguage="en-US")
    send(call, type="text", token="hello", last=True)
    send(call, type="text", token="merci", last=True, lang="fr-FR")
    turns = {turn.text: turn for turn in call.session.turns.live}
    assert [(turns[text].language, turns[text].voice) for text in ("bonjour", "hello", "merci")] == [
        ("fr-FR", "amelie"),
        ("en-US", ""),
        ("fr-FR", "amelie"),
    ]
    await call.finish()


def configured(call: ListeningCall, config: ConfigChange) -> None:
    call.listening.configure(hearing_settings(config, call.listening._hearing))


async def test_hints_and_partial_results_reach_the_recogniser_between_two_utterances() -> None:
    call = ListeningCall({"recogniser": "external"})
    call.starts()
    configured(call, ConfigChange(hints=("Ulm",), partial_prompts=True))
    assert len(call.words.opened) == 1  # what is being said is not lost
    call.stops()
    call.run(1.0)
    call.words.events[0].on_final("Hello.")
    assert call.words.opened[1] == {"language": "en-US", "hints": ("Ulm",), "partials": True}
    call.starts()
    call.words.events[1].on_partial("How")
    assert [m.last for m in call.told if isinstance(m, Prompt)] == [True, False]


async def test_speech_timeout_is_the_silence_that_ends_an_utterance() -> None:
    call = ListeningCall({"recogniser": "external"})
    configured(call, ConfigChange(speech_timeout_ms=2000))
    call.starts()
    call.stops()
    call.run(1.5)
    assert call.words.finished == 0
    call.run(0.5)
    assert call.words.finished == 1


SENTENCE = "Your order will arrive on Monday before noon."


@pytest.mark.parametrize("filtering", [True, False])
async def test_an_echo_of_what_we_say_is_no_prompt(filtering: bool) -> None:
    route = {"recogniser": "external", "echo_prompt_filtering": filtering, "partial_prompts": True}
    call = ListeningCall(route, report_input="any")
    call.say(Text(token=SENTENCE, last=True, interruptible="none"))
    call.work_all()
    call.run(1.0)
    call.starts()
    call.words.events[0].on_partial("order")
    call.words.events[0].on_partial("Order will arrive")
    call.stops()
    call.run(3.0)  # the turn is over
    call.words.events[0].on_final("order will arrived on Monday")
    assert bool([m for m in call.told if isinstance(m, Prompt)]) != filtering


async def test_an_answer_in_our_words_and_a_caller_who_waits_are_prompts() -> None:
    call = ListeningCall({"recogniser": "external", "echo_prompt_filtering": True})
    call.say(Text(token=SENTENCE, last=True))
    call.work_all()
    call.run(1.0)
    call.starts()
    call.stops()
    call.run(1.0)
    call.words.events[0].on_final("Monday?")  # two words at most: an answer
    call.run(3.0)
    call.starts()
    call.stops()
    call.run(1.0)
    call.words.events[0].on_final("Order will arrive on Monday.")  # we do not speak
    assert [m.voice_prompt for m in call.told if isinstance(m, Prompt)] == ["Monday?", "Order will arrive on Monday."]


@pytest.mark.parametrize(
    ("heard", "echo"),
    [
        ("your order will arrive on monday", True),
        ("order will arrive on sunday before noon", True),
        ("will arrive", False),
        ("no i want it before noon", False),
        ("your noon before monday on arrive will order", False),
        ("your monday noon", False),
        ("", False),
    ],
)
def test_an_echo_has_our_words_in_our_order_and_close_together(heard: str, echo: bool) -> None:
    assert is_echo(heard.split(), "your order will arrive on monday before noon".split()) == echo


def test_few_words_in_a_row_may_become_an_echo() -> None:
    assert may_become_echo(["will", "arrive"], "your order will arrive".split())
    assert not may_become_echo(["will", "order"], "your order will arrive".split())
    assert not may_become_echo(["i"], [])


async def test_known_voices_say_what_a_route_can_speak() -> None:
    voices = [VoiceInfo(voice_id="heart", name="", languages=["en-US"], engine="e")]
    own = [VoiceInfo(voice_id="acme.anna", name="", languages=[], engine="e", registered=True)]
    answers: list[Sequence[VoiceInfo] | Exception] = [voices, Unavailable("gone")]

    async def list_voices() -> Sequence[VoiceInfo]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    known = KnownVoices(list_voices, {})
    assert known.problem("r", "de-DE", "x") == ""  # nothing is known yet
    known._voices = voices
    assert known.problem("r", "en-GB", "heart") == ""
    assert known.problem("r", "de-DE", "") == "no voice speaks 'de-DE', expected one of en"
    assert known.problem("r", "", "stranger") == "no voice 'stranger', expected one of heart"
    known._voices = [*voices, *own]
    assert known.problem("r", "de-DE", "") == ""  # a cloned voice speaks what its model speaks


@pytest.mark.virtual_time
async def test_the_manager_switches_the_reduction_of_noise() -> None:
    call = VirtualSession({})
    send(call, type="config", backgroundNoiseReduction=True)
    send(call, type="config", settings={"background_noise_reduction": "false"})
    await call.run(0.1)
    assert said(call, "noise reduced") == ["noise reduced True", "noise reduced False"]
    await call.finish()
