"""The dialogue protocol on the wire: every message both ways, and only one kind of error."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import LimitsConfig
from gateway.dialogue.line import setup_of
from gateway.dialogue.wire import BadMessage, audio_prefix, decode, encode, refusal
from gateway.errors import ProtocolError
from gateway.seams import messages as m
from gateway.seams.end_cause import EndCause
from tests.gateway.dialogue.dialogue_fakes import HEX, call

LIMITS = LimitsConfig(turn_chars=100)

ALL_SETTINGS = m.ConfigChange(
    interruptible="speech", preemptible=True, dtmf_detection=False, report_input_during_agent_speech="any",
    partial_prompts=True, speech_timeout_ms=800, turn_detection=False, ignore_backchannel=True,
    echo_prompt_filtering=False, interrupt_sensitivity="low", background_noise_reduction=True,
    hints=("Ulm", "Bad Ems"),
    names=(
        "interruptible", "preemptible", "dtmfDetection", "reportInputDuringAgentSpeech", "partialPrompts",
        "speechTimeout", "turnDetection", "ignoreBackchannel", "echoPromptFiltering", "interruptSensitivity",
        "backgroundNoiseReduction", "hints",
    ),
)  # fmt: skip
AS_JSON = {
    "interruptible": "speech", "preemptible": True, "dtmfDetection": False, "reportInputDuringAgentSpeech": True,
    "partialPrompts": True, "speechTimeout": 800, "turnDetection": False, "ignoreBackchannel": True,
    "echoPromptFiltering": False, "interruptSensitivity": "low", "backgroundNoiseReduction": True,
    "hints": ["Ulm", "Bad Ems"],
}  # fmt: skip
AS_TEXT = {
    "interruptible": "Speech", "preemptible": "true", "dtmfDetection": "false", "reportInputDuringAgentSpeech": "any",
    "partialPrompts": "True", "speechTimeout": "800", "turnDetection": "false", "ignoreBackchannel": "true",
    "echoPromptFiltering": "FALSE", "interruptSensitivity": "LOW", "backgroundNoiseReduction": "true",
    "hints": "Ulm, Bad Ems,",
}  # fmt: skip
AS_KEYS_OF_A_ROUTE = {
    "interruptible": "speech", "preemptible": True, "dtmf_detection": False,
    "report_input_during_agent_speech": "any", "partial_prompts": True, "speech_timeout": 800, "turn_detection": False,
    "ignore_backchannel": True, "echo_prompt_filtering": False, "interrupt_sensitivity": "low",
    "background_noise_reduction": True, "hints": ["Ulm", "Bad Ems"],
}  # fmt: skip


@pytest.mark.parametrize("fields", [AS_JSON, AS_TEXT, AS_KEYS_OF_A_ROUTE])
@pytest.mark.parametrize("nested", ["", "config", "settings"])
def test_settings_in_any_of_the_likely_shapes_inferred(fields: dict[str, Any], nested: str) -> None:
    assert read({"type": "config", **({nested: fields} if nested else fields)}) == ALL_SETTINGS


def test_unknown_settings_are_no_error_and_the_top_level_wins_inferred() -> None:
    body = {"type": "config", "someday": [1], "a": {"preemptible": True, "b": {"c": 1}}, "preemptible": False}
    assert read(body) == m.ConfigChange(preemptible=False, names=("preemptible",))
    assert read({"type": "config"}) == m.ConfigChange()
    assert read({"type": "config", "eotThreshold": 0.7}) == m.ConfigChange(ignored=("eotThreshold",))


@pytest.mark.parametrize(
    ("fields", "field", "expected"),
    [
        ({"interruptible": "never"}, "interruptible", 'is "never", expected any, speech, dtmf, none, true or false'),
        ({"preemptible": "maybe"}, "preemptible", 'is "maybe", expected true or false'),
        ({"config": {"partialPrompts": 1}}, "partialPrompts", "is 1, expected true or false"),
        ({"speechTimeout": 599}, "speechTimeout", "is 599, expected milliseconds from 600 to 5000"),
        ({"interruptSensitivity": 3}, "interruptSensitivity", "is 3, expected high, medium or low"),
        ({"turnDetection": "soon"}, "turnDetection", 'is "soon", expected true or false'),
        ({"speechTimeout": "soon"}, "speechTimeout", 'is "soon", expected milliseconds'),
        ({"hints": [1]}, "hints", "is [1], expected phrases"),
        ({"hints": ["x"] * 501}, "hints", "expected at most 500 phrases"),
    ],
)
def test_a_wrong_value_of_a_known_setting_is_one_error(fields: dict[str, Any], field: str, expected: str) -> None:
    with pytest.raises(BadMessage, match="config") as caught:
        read({"type": "config", **fields, "someday": 1})
    assert caught.value.field == field and expected in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"hints": "Ulm,Ems"}, m.Hints(hints=("Ulm", "Ems"))),
        ({"hints": ["Ulm"], "lang": "de-DE"}, m.Hints(hints=("Ulm",), language="de-DE")),
        ({"value": {"hints": []}, "language": "en"}, m.Hints(hints=(), language="en")),
    ],
)
def test_hints_in_any_of_the_likely_shapes_inferred(body: dict[str, Any], message: m.Hints) -> None:
    assert read({"type": "hints", **body}) == message


def test_hints_without_hints_are_an_error() -> None:
    with pytest.raises(BadMessage, match="hints.hints is missing, expected phrases"):
        read({"type": "hints"})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"ttsLanguage": "fr-FR", "voice": "amelie", "ttsProvider": "x"},
            m.Language(
                tts_language="fr-FR",
                languages=(m.LanguageSettings(code="fr-FR", voice="amelie"),),
                ignored=("ttsProvider",),
            ),
        ),
        (
            {"transcriptionLanguage": "de", "hints": "Ulm"},
            m.Language(
                transcription_language="de", languages=(m.LanguageSettings(code="de", hints=("Ulm",)),)
            ),
        ),
        (
            {"ttsLanguage": "fr", "transcriptionLanguage": "de", "voice": "amelie", "hints": ["Ulm"]},
            m.Language(
                tts_language="fr",
                transcription_language="de",
                languages=(
                    m.LanguageSettings(code="fr", voice="amelie", hints=("Ulm",)),
                    m.LanguageSettings(code="de", hints=("Ulm",)),
                ),
            ),
        ),
        (
            {"languages": [{"code": "es", "voice": "pilar", "speechModel": "x"}, {"code": "it"}], "ttsLanguage": "es"},
            m.Language(
                tts_language="es",
                languages=(m.LanguageSettings(code="es", voice="pilar"), m.LanguageSettings(code="it")),
                ignored=("speechModel",),
            ),
        ),
        ({"language": {"code": "es", "voice": "pilar"}},
         m.Language(languages=(m.LanguageSettings(code="es", voice="pilar"),))),
    ],
)  # fmt: skip
def test_languages_declared_in_any_of_the_likely_shapes_inferred(body: dict[str, Any], message: m.Language) -> None:
    assert read({"type": "language", **body}) == message


def read(body: dict[str, Any]) -> m.Inbound:
    return decode(orjson.dumps(body), limits=LIMITS, multiplexed=False)[1]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"type": "text", "token": ""}, m.Text(token="")),
        (
            {"type": "text", "token": " Hi ", "last": True, "lang": None, "interruptible": True, "extra": [1]},
            m.Text(token=" Hi ", last=True, interruptible="any"),
        ),
        (
            {
                "type": "text",
                "token": "a",
                "interruptible": "dtmf",
                "preemptible": False,
                "turn": "x",
                "voice": "v",
                "speed": 2,
                "instruct": "calm",
                "hold": True,
                "expect": {"digits": 10},
                "lang": "de-DE",
            },
            m.Text(
                token="a",
                interruptible="dtmf",
                preemptible=False,
                turn="x",
                voice="v",
                speed=2.0,
                instruct="calm",
                hold=True,
                expect=m.ExpectedReply(kind="digits", digits=10),
                lang="de-DE",
            ),
        ),
        (
            {"type": "play", "source": "https://a/b.mp3", "loop": 0, "interruptible": False},
            m.Play(source="https://a/b.mp3", loop=0, interruptible="none"),
        ),
        (
            {"type": "play", "source": "a.wav", "expect": "yesNo"},
            m.Play(source="a.wav", expect=m.ExpectedReply(kind="yesNo")),
        ),
        ({"type": "sendDigits", "digits": "1w#*D"}, m.SendDigits(digits="1w#*D")),
        ({"type": "language", "ttsLanguage": "fr-FR"}, m.Language(tts_language="fr-FR")),
        ({"type": "end"}, m.End()),
        ({"type": "end", "commit": True}, m.End(commit=True)),
        ({"type": "end", "commit": None}, m.End()),
        ({"type": "transfer", "target": "+1", "commit": True}, m.Transfer(target="+1", commit=True)),
        ({"type": "end", "handoffData": '{"a": 1}'}, m.End(handoff_data='{"a": 1}')),
        ({"type": "cancel"}, m.Cancel()),
        ({"type": "commit", "turn": "x"}, m.Commit(turn="x")),
        ({"type": "discard", "turn": "x"}, m.Discard(turn="x")),
        ({"type": "mark", "name": "m"}, m.Mark(name="m")),
        ({"type": "subscribe", "media": True, "sampleRate": 16000}, m.Subscribe(media=True, sample_rate=16000)),
        ({"type": "subscribe", "media": False}, m.Subscribe(media=False)),
        ({"type": "record", "state": "start"}, m.Record(state="start")),
        ({"type": "record", "state": "pause"}, m.Record(state="pause")),
        ({"type": "record", "state": "resume"}, m.Record(state="resume")),
        ({"type": "record", "state": "stop"}, m.Record(state="stop")),
        ({"type": "transfer", "target": "sip:a@b"}, m.Transfer(target="sip:a@b")),
        (
            {"type": "transfer", "target": "a", "warm": {"briefing": "b", "accept": " yes "}, "acceptTimeoutS": 5},
            m.Transfer(target="a", warm=m.Warm(briefing="b", accept=("yes",), decline=("2",)), accept_timeout_s=5),
        ),
        (
            {"type": "transfer", "target": "a", "warm": {"briefing": "b", "accept": ["9", "ok"], "decline": []}},
            m.Transfer(target="a", warm=m.Warm(briefing="b", accept=("9", "ok"), decline=())),
        ),
        ({"type": "leave"}, m.Leave()),
        ({"type": "leave", "leg": "VX2", "room": "r"}, m.Leave(leg="VX2", room="r")),
        ({"type": "join", "room": "r"}, m.Join(room="r")),
        ({"type": "join", "room": "r", "muted": True}, m.Join(room="r", muted=True)),
        ({"type": "mute"}, m.Mute()),
        ({"type": "mute", "leg": "VX2", "muted": False}, m.Mute(leg="VX2", muted=False)),
    ],
)
def test_every_message_of_a_manager_is_read(body: dict[str, Any], message: m.Inbound) -> None:
    assert read(body) == message


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        ({}, "type", "is missing"),
        ({"type": "txet"}, "type", '"txet", expected one of text'),
        ({"type": 7}, "type", "is 7"),
        ({"type": "text"}, "token", "is missing, expected a string"),
        ({"type": "text", "token": None}, "token", "is null"),
        ({"type": "text", "token": 5}, "token", "is 5"),
        ({"type": "text", "token": "x" * 101}, "token", "101 characters, expected at most 100"),
        ({"type": "text", "token": "x", "last": "true"}, "last", "expected true or false"),
        ({"type": "text", "token": "x", "interruptible": "ANY"}, "interruptible", "any, speech, dtmf, none"),
        ({"type": "text", "token": "x", "interruptible": 1}, "interruptible", "is 1"),
        ({"type": "text", "token": "x", "interruptible": []}, "interruptible", "is []"),
        ({"type": "text", "token": "x", "speed": 9}, "speed", "from 0.25 to 4"),
        ({"type": "text", "token": "x", "speed": True}, "speed", "is true"),
        ({"type": "play", "source": ""}, "source", "not empty"),
        ({"type": "play", "source": "a", "loop": -1}, "loop", "from 0 to 1000"),
        ({"type": "play", "source": "a", "loop": 1.5}, "loop", "whole number"),
        ({"type": "sendDigits", "digits": ""}, "digits", "not empty"),
        ({"type": "sendDigits", "digits": "12a"}, "digits", '"12a"'),
        ({"type": "language"}, "ttsLanguage", "neither"),
        ({"type": "end", "handoffData": {"a": 1}}, "handoffData", "expected a string"),
        ({"type": "commit"}, "turn", "is missing"),
        ({"type": "subscribe"}, "media", "is missing"),
        ({"type": "record"}, "state", "is missing"),
        ({"type": "record", "state": "go"}, "state", "start, pause, resume or stop"),
        ({"type": "subscribe", "media": True, "sampleRate": 44100}, "sampleRate", "8000, 16000 or 24000"),
    ],
)
def test_bad_input_names_the_field_what_came_and_what_was_expected(body: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(BadMessage) as caught:
        read(body)
    assert caught.value.field == field
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["", "hello", "[]", "null", "1", '{"type":', '"\\ud800"', b"\xff\xfe", "[" * 5000])
@pytest.mark.parametrize("multiplexed", [False, True])
def test_what_is_no_object_is_a_bad_message(text: str | bytes, multiplexed: bool) -> None:
    with pytest.raises(BadMessage, match="expected one JSON object"):
        decode(text, limits=LIMITS, multiplexed=multiplexed)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
FIELDS = (
    "token last lang interruptible preemptible turn voice speed instruct hold source loop digits name media".split()
)
TYPES = "text play sendDigits language end cancel commit discard mark subscribe record transfer".split()
GARBAGE = (
    st.text()
    | st.binary()
    | JSON.map(orjson.dumps)
    | st.builds(
        lambda kind, fields: orjson.dumps({**fields, "type": kind}),
        st.sampled_from(TYPES) | JSON,
        st.dictionaries(st.sampled_from([*FIELDS, "sessionId", "handoffData", "target", "sampleRate"]), JSON),
    )
)


@given(GARBAGE, st.booleans())
def test_garbage_is_a_message_or_a_bad_message_and_its_error_can_be_sent(text: str | bytes, multiplexed: bool) -> None:
    try:
        decode(text, limits=LIMITS, multiplexed=multiplexed)
    except ProtocolError as reason:
        assert isinstance(reason, BadMessage)
        frame = text.decode(errors="replace") if isinstance(text, bytes) else text
        if not any("\ud800" <= character <= "\udfff" for character in frame):
            assert encode(refusal(frame, reason), extensions=True)


def test_multiplexed_messages_name_their_call() -> None:
    body = {"type": "cancel", "turn": "t7", "sessionId": f"VX{HEX}"}
    assert decode(orjson.dumps(body), limits=LIMITS, multiplexed=True) == (f"VX{HEX}", m.Cancel(turn="t7"))
    with pytest.raises(BadMessage, match="sessionId is missing"):
        decode('{"type": "end"}', limits=LIMITS, multiplexed=True)
    with pytest.raises(BadMessage) as caught:
        decode(orjson.dumps({**body, "type": "no"}), limits=LIMITS, multiplexed=True)
    assert (caught.value.session_id, caught.value.turn) == (f"VX{HEX}", "t7")


SETUP = setup_of(call(1, from_="+1", custom_parameters={"a": "b"}), codec="PCMU/8000", version="1")


@pytest.mark.parametrize(
    ("message", "relay", "extended"),
    [
        (
            SETUP,
            {
                "type": "setup",
                "sessionId": f"VX{1:032x}",
                "callSid": f"CA{1:032x}",
                "accountSid": "",
                "parentCallSid": "",
                "from": "+1",
                "to": "",
                "forwardedFrom": "",
                "callerName": "",
                "direction": "inbound",
                "callType": "PSTN",
                "callStatus": "RINGING",
                "customParameters": {"a": "b"},
            },
            {"transport": "twilio", "codec": "PCMU/8000", "version": "1", "resumed": False},
        ),
        (
            m.Prompt(voice_prompt="hi", lang="en-US", last=True),
            {"type": "prompt", "voicePrompt": "hi", "lang": "en-US", "last": True},
            {"continues": False},
        ),
        (
            m.Prompt(voice_prompt="hi", lang="en-US", last=False, likely_last=True),
            {"type": "prompt", "voicePrompt": "hi", "lang": "en-US", "last": False},
            {"continues": False, "likelyLast": True},
        ),
        (m.Info(name="noWords", value="t1"), None, {"type": "info", "name": "noWords", "value": "t1"}),
        (
            m.Answered(by="ivr", confidence=0.95, text="Please hold", waiting=True),
            None,
            {"type": "answered", "by": "ivr", "confidence": 0.95, "text": "Please hold", "waiting": True},
        ),
        (m.Beep(length_s=0.4104), None, {"type": "beep", "lengthMs": 410}),
        (m.BothSilent(seconds=8.0), None, {"type": "silence", "seconds": 8.0}),
        (m.Dtmf(digit="#"), {"type": "dtmf", "digit": "#"}, {}),
        (
            m.Interrupt(utterance_until_interrupt="He", duration_until_interrupt_ms=5, turn="t1", reason="dtmf"),
            {"type": "interrupt", "utteranceUntilInterrupt": "He", "durationUntilInterruptMs": 5},
            {"turn": "t1", "reason": "dtmf", "utteranceRemaining": ""},
        ),
        (
            m.Error(description="no", code="c", field="f"),
            {"type": "error", "description": "no"},
            {"code": "c", "turn": "", "field": "f"},
        ),
        (m.Info(name="tokensPlayed", value="x"), {"type": "info", "name": "tokensPlayed", "value": "x"}, {}),
        (
            m.Info(
                name="tokensPlayed",
                value="x",
                turn="t1",
                words=[m.HeardWord(text="x", at_ms=20, end_ms=70, timing="estimated")],
            ),
            {"type": "info", "name": "tokensPlayed", "value": "x"},
            {"turn": "t1", "words": [{"text": "x", "atMs": 20, "endMs": 70, "timing": "estimated"}]},
        ),
        (
            m.TurnEvent(turn="t1", event="started", data={"firstPacketMs": 41.5, "stages": {"text": 1.0}}),
            None,
            {"type": "turn", "turn": "t1", "event": "started", "firstPacketMs": 41.5, "stages": {"text": 1.0}},
        ),
        (m.MarkReached(name="a", cleared=True), None, {"type": "mark", "name": "a", "cleared": True}),
        (m.Withdrawn(what="end"), None, {"type": "withdrawn", "what": "end"}),
        (m.LegEvent(leg="VX2", event="ringing"), None, {"type": "leg", "leg": "VX2", "event": "ringing"}),
        (
            m.RoomEvent(room="r", leg="VX2", event="joined"),
            None,
            {"type": "room", "room": "r", "leg": "VX2", "event": "joined", "muted": False},
        ),
        (m.Info(name="supervisor", value="join"), None, {"type": "info", "name": "supervisor", "value": "join"}),
        (m.OfLeg(leg="VX2", message=m.Dtmf(digit="5")), None, {"type": "dtmf", "digit": "5", "leg": "VX2"}),
        (m.Ended(reason="hangup", duration_ms=9), None, {"type": "ended", "reason": "hangup", "durationMs": 9}),
        (
            m.Ended(
                reason="busy",
                duration_ms=9,
                cause=EndCause(by="caller", sip_status=486, q850=17, text="User busy"),
            ),
            None,
            {
                "type": "ended",
                "reason": "busy",
                "durationMs": 9,
                "by": "caller",
                "sipStatus": 486,
                "q850": 17,
                "text": "User busy",
            },
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_message_of_the_gateway_is_written(
    message: m.Outbound, relay: dict[str, Any] | None, extended: dict[str, Any]
) -> None:
    plain = encode(message, extensions=False)
    assert (plain and orjson.loads(plain)) == relay
    full = encode(message, extensions=True)
    assert full is not None and orjson.loads(full) == {**(relay or {}), **extended}
    named = encode(message, extensions=True, session_id=f"VX{1:032x}")
    assert named is not None and orjson.loads(named)["sessionId"] == f"VX{1:032x}"


def test_audio_is_headed_by_the_sixteen_bytes_of_the_session() -> None:
    assert audio_prefix(f"VX{HEX}") == bytes.fromhex(HEX)


def test_refusal_reads_as_recorded_and_says_why() -> None:
    with pytest.raises(BadMessage) as caught:
        decode("this is not JSON", limits=LIMITS, multiplexed=False)
    error = refusal("this is not JSON", caught.value)
    assert error.description.startswith("Invalid message received, code: 64107, this is not JSON (")
    assert len(refusal("x" * 10_000, caught.value).description) < 1200


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"warm": {"briefing": "b", "accept": []}}, "accept"),
        ({"warm": {"briefing": "b", "accept": "2"}}, "decline"),
        ({"warm": {"briefing": "b", "decline": [""]}}, "decline"),
        ({"warm": {"briefing": "b", "decline": ["x"] * 17}}, "decline"),
        ({"acceptTimeoutS": 0}, "acceptTimeoutS"),
    ],
)
def test_a_warm_transfer_that_no_one_could_decide_is_refused(fields: dict[str, object], field: str) -> None:
    body = {"type": "transfer", "target": "a", "warm": {"briefing": "b"}, **fields}
    with pytest.raises(BadMessage) as caught:
        decode(orjson.dumps(body), limits=LIMITS, multiplexed=False)
    assert caught.value.field == field
