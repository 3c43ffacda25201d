"""Text from the network is plain past the edge, whichever edge it came in at."""

import unicodedata

import orjson
import pytest
from pydantic import ValidationError

from gateway.carriers.caller import incoming_call
from gateway.carriers.reading import json_object
from gateway.config import LimitsConfig
from gateway.dialogue.line import setup_of
from gateway.dialogue.wire import BadMessage, decode, encode
from gateway.http.request.routes import ApiModel
from gateway.seams.incoming import IncomingCall
from gateway.seams.media_messages import StreamStarted
from gateway.seams.messages import Text
from gateway.seams.plain_text import is_plain, plain, plain_json, plain_lines, read_json
from voicecodecs.registry import AudioFormat

EVERY = "".join(map(chr, range(0x110000)))


def test_no_control_character_and_no_surrogate_stays() -> None:
    cleaned = plain(EVERY)
    assert len(cleaned) == len(EVERY)
    assert not {unicodedata.category(char) for char in cleaned} & {"Cc", "Cs", "Zl", "Zp"}
    assert is_plain(cleaned) and not is_plain(EVERY)
    assert plain(cleaned) is cleaned


def test_words_keep_their_line_breaks_and_tabs() -> None:
    assert plain_lines("one\r\n\ttwo\0\x7f\x9b\udcff") == "one\r\n\ttwo" + "\ufffd" * 4
    assert plain("one\r\n\ttwo") == "one   two"


@pytest.mark.parametrize("bad", ["\udcff", "\ud800", "\0", "\r\nX: y", "\x1b[2J", "\x9b", "\x7f"])
def test_a_call_is_plain_in_every_field_and_can_be_told_to_a_manager(bad: str) -> None:
    text = f"a{bad}b"
    names = ("call_sid", "account_sid", "parent_call_sid", "from_", "to", "forwarded_from", "caller_name", "call_type",
             "call_status", "direction", "domain")  # fmt: skip
    call = IncomingCall(
        route="demo", transport="sip", inbound=AudioFormat("PCMU"), custom_parameters={text: text},
        **dict.fromkeys(names, text),  # type: ignore[arg-type]
    )  # fmt: skip
    assert all(is_plain(getattr(call, name)) for name in names)
    assert all(is_plain(part) for pair in call.custom_parameters.items() for part in pair)
    setup = setup_of(call.accepted("VX" + "0" * 32, {}), codec="PCMU/8000", version="1")
    assert encode(setup, extensions=True) is not None


def test_a_carriers_start_is_plain() -> None:
    body = json_object('{"sid":"a\\u0000\\u001bb","to":["\\u007f"],"x":{"\\n":"\x9b"},"n":1}')
    assert body == {"sid": "a\ufffd\ufffdb", "to": ["\ufffd"], "x": {" ": "\ufffd"}, "n": 1}
    started = StreamStarted(stream_id="s", call_sid="c", custom_parameters={"talkspurt.From": "+49\0\udcff"})
    assert incoming_call(started, route="a", transport="twilio").from_ == "+49\ufffd\ufffd"


def test_a_managers_message_is_plain_and_keeps_line_breaks() -> None:
    body = orjson.dumps({"type": "text", "token": "One.\nTwo.\0\x1b", "last": True, "turn": "t\x07"})
    _, message = decode(body, limits=LimitsConfig(), multiplexed=False)
    assert isinstance(message, Text)
    assert (message.token, message.turn) == ("One.\nTwo.\ufffd\ufffd", "t\ufffd")


@pytest.mark.parametrize(
    ("escaped", "token"),
    [
        (r"One \ud83d", "One \ufffd"),
        (r"\ude00 two", "\ufffd two"),
        (r"\ud83d\ude00 three \\ud83d", "😀 three \\ud83d"),
        (r"\uD83D\u0041", "\ufffdA"),
    ],
)
def test_half_a_character_costs_no_message(escaped: str, token: str) -> None:
    for data in (
        f'{{"type":"text","token":"{escaped}","last":true}}',
        f'{{"type":"text","token":"{escaped}"}}'.encode(),
    ):
        _, message = decode(data, limits=LimitsConfig(), multiplexed=False)
        assert isinstance(message, Text) and message.token == token


@pytest.mark.parametrize(
    "data", [r'{"a": NaN, "b": "\u0041"}', r'{"a": "\u00"}', r'"\u0041" x', "[" * 100_000 + r'"\u0041"']
)
def test_what_is_no_json_is_still_refused(data: str) -> None:
    with pytest.raises(ValueError):
        read_json(data)
    with pytest.raises(ValueError):
        read_json(data.encode())


class Body(ApiModel):
    """A body with a field of any kind."""

    text: str
    more: object = None


@pytest.mark.parametrize("depth", [300, 520, 900, 1010])
@pytest.mark.parametrize(("begins", "ends"), [("[", "]"), ('{"a":', "}")])
def test_what_is_nested_deeper_than_python_walks_is_refused(depth: int, begins: str, ends: str) -> None:
    value = begins * depth + "1" + ends * depth
    body = f'{{"type": "text", "token": "h\\u00e4", "text": "", "more": {value}}}'
    try:
        decode(body, limits=LimitsConfig(), multiplexed=False)
    except BadMessage as exc:
        assert depth > 300, exc
    try:
        Body.from_json(body.encode())
    except ValidationError:
        assert depth > 150
    with pytest.raises(ValueError, match="nested too deep"):
        plain_json(orjson.loads("[" * 1020 + "]" * 1020))
