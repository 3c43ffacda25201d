"""The route of a TwiML answer, as the configuration then reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from talkspurt.cli import main
from talkspurt.commands.import_twiml import TwimlError, convert
from talkspurt.config.settings import Config, load

TWIML = """<?xml version="1.0" encoding="UTF-8"?>
<Response>
  <Connect action="https://bot.example.com/after">
    <ConversationRelay url="wss://bot.example.com/ws" welcomeGreeting="That is $5 &amp; ${tax}." interruptible="false"
        welcomeGreetingInterruptible="speech" dtmfDetection="true" hints="Acme, talkspurt" events="tokens-played"
        reportInputDuringAgentSpeech="dtmf" voice="en-US-Journey-O" ttsProvider="Google" language="de-DE" madeUp="1">
      <Language code="en-US" voice="en-US-Journey-D" hints="gate, pier"/>
      <Parameter name="customer" value="17"/>
      <Parameter name="phone" value=" 15550100"/>
    </ConversationRelay>
  </Connect>
</Response>"""


def read(tmp_path: Path, twiml: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Config, str]:
    text = convert(twiml.encode())
    (tmp_path / "route.yaml").write_text(text)
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", "secret")
    return load(tmp_path / "route.yaml"), text


def test_each_attribute_becomes_its_key_or_a_comment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, text = read(tmp_path, TWIML, monkeypatch)
    route = config.routes["default"]
    assert (route.dialogue.url, route.dialogue.end_drain) == ("wss://bot.example.com/ws", False)
    assert route.dialogue.auth_token is not None and route.dialogue.auth_token.get_secret_value() == "secret"
    assert (route.welcome_greeting, route.language) == ("That is $5 & ${tax}.", "de-DE"), "nothing is filled in"
    assert (route.interruptible, route.welcome_greeting_interruptible) == ("none", "speech")
    assert (route.dtmf_detection, route.hints, route.events) == (True, ("Acme", "talkspurt"), ("tokens-played",))
    assert (route.report_input_during_agent_speech, route.parameters) == (
        "dtmf",
        {"customer": "17", "phone": " 15550100"},
    )
    assert config.carriers.configured()["twilio"].settings.model_dump()["after_url"] == "https://bot.example.com/after"
    assert [(each.code, each.hints) for each in route.languages] == [("en-US", ("gate", "pier"))]
    for note in (
        "voice: voices have",
        "ttsProvider: the engine",
        "madeUp: no effect",
        "<Language en-US> voice=en-US-J",
        "<Parameter phone>: if this is of one call, write '{from}'",
    ):
        assert f"#   {note}" in text


def test_what_twilio_leaves_out_by_default_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twiml = '<Response><Connect><ConversationRelay url="wss://a.example/"/></Connect></Response>'
    config, text = read(tmp_path, twiml, monkeypatch)
    assert config.routes["default"].dtmf_detection is False and "Without a key" not in text


@pytest.mark.parametrize(
    ("twiml", "problem"),
    [
        ("<Response>", "not XML"),
        ("<Response><Connect><Stream url='wss://a'/></Connect></Response>", "no <Connect> with"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><Response/>', "document type"),
        (
            "<Response><Connect><ConversationRelay url='wss://a'><Language/></ConversationRelay></Connect></Response>",
            "<Language> has no code",
        ),
        ("<Response><Connect><ConversationRelay url='https://a'/></Connect></Response>", "url is 'https://a'"),
        (
            "<Response><Connect><ConversationRelay url='ws://a' preemptible='maybe'/></Connect></Response>",
            "preemptible is 'maybe', expected one of true false",
        ),
    ],
)
def test_another_file_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], twiml: str, problem: str
) -> None:
    with pytest.raises(TwimlError, match=problem):
        convert(twiml.encode())
    (tmp_path / "a.xml").write_text(twiml)
    assert main(["import-twiml", str(tmp_path / "a.xml")]) == 2
    out = capsys.readouterr()
    assert out.out == "" and problem in out.err and len(out.err.splitlines()) == 1
