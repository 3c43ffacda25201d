"""The conversation that ``talkspurt call`` prints, and the numbers that it calls with."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from talkspurt.simulator.carriers import CARRIERS
from talkspurt.simulator.carriers.carrier import FROM, TO
from talkspurt.simulator.conversation import Conversation


def printed(*messages: dict[str, Any]) -> list[str]:
    out = io.StringIO()
    conversation = Conversation("CA1", out)
    conversation.take({"type": "setup", "sessionId": "VX2", "callSid": "CA2", "from": "x", "to": "y"})
    conversation.take({"type": "setup", "sessionId": "VX1", "callSid": "CA1", "from": "+1", "to": ""})
    for message in messages:
        conversation.take({"sessionId": "VX1", **message})
    return [re.sub(r"^ *\d+\.\d s  ", "", line) for line in out.getvalue().splitlines()]


def test_each_side_has_its_lines_and_other_calls_none() -> None:
    assert printed(
        {"type": "caption", "turn": "t1", "text": "Hello "},
        {"type": "caption", "turn": "t1", "text": "there."},
        {"type": "caption", "turn": "t9", "text": "Not here.", "sessionId": "VX2"},
        {"type": "dtmf", "digit": "1"},
        {"type": "caption", "turn": "t2", "text": "One mo"},
        {"type": "turn", "turn": "t2", "event": "interrupted", "reason": "speech"},
        {"type": "prompt", "voicePrompt": "Wait,", "last": False},
        {"type": "prompt", "voicePrompt": "Wait, \x1b[2Jplease.", "last": True},
        {"type": "ended", "reason": "hangup"},
    ) == [
        "call    +1 calls the bot",
        "bot     Hello there.",
        "caller  presses 1",
        "bot     One mo -- cut by speech",
        "caller  Wait,  [2Jplease.",
        "end     hangup",
    ]


@pytest.mark.parametrize("dialect", ["twilio", "telnyx", "exotel", "jambonz"])
def test_the_numbers_are_in_the_start_of_the_stream(dialect: str) -> None:
    opening = "".join(map(str, CARRIERS[dialect](1, {FROM: "+4911", TO: "+4922"}).opening()))
    assert "+4911" in opening and "+4922" in opening


def test_a_person_whom_the_bot_calls_is_told_from_the_caller() -> None:
    assert printed(
        {"type": "leg", "leg": "VX3", "event": "ringing"},
        {"type": "prompt", "voicePrompt": "Yes, please.", "last": True, "leg": "VX3"},
        {"type": "dtmf", "digit": "1", "leg": "VX3"},
        {"type": "leg", "leg": "VX3", "event": "accepted"},
        {"type": "prompt", "voicePrompt": "Thank you.", "last": True},
    )[1:] == [
        "person  ringing",
        "person  Yes, please.",
        "person  presses 1",
        "person  accepted",
        "caller  Thank you.",
    ]
