"""The samples in ``configs/``: readable, with names that the gateway knows; the Lua scripts run on an interpreter."""

from __future__ import annotations

import configparser
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import lupa
import pytest

from gateway.seams.media_messages import StreamStarted
from tests.gateway.carriers.made import serializer

CONFIGS = Path(__file__).parents[2] / "configs"
XML = CONFIGS / "freeswitch/talkspurt.xml"


def actions(extension: str) -> list[tuple[str, str]]:
    """(application, data) of a FreeSWITCH extension."""
    tree = ElementTree.parse(XML).getroot()
    found = tree.find(f"extension[@name='{extension}']/condition")
    assert found is not None
    return [(action.get("application", ""), action.get("data", "")) for action in found]


@pytest.mark.parametrize(
    ("extension", "dialect", "module"),
    [
        ("talkspurt_audio_stream", "freeswitch", "uuid_audio_stream"),
        ("talkspurt_audio_fork", "freeswitch-fork", "uuid_audio_fork"),
    ],
)
def test_the_dialplan_names_streams_that_the_gateway_takes(extension: str, dialect: str, module: str) -> None:
    steps = actions(extension)
    assert [steps[0][0], steps[-1][0]] == ["answer", "park"]
    (url,) = [data.partition("=")[2] for name, data in steps if name == "set" and data.startswith("talkspurt_url=")]
    url = url.replace("${uuid}", "u-1").replace("${url_encode(${caller_id_number})}", "%2B15550100")
    address = urlsplit(url.replace("${destination_number}", "7100"))
    assert address.path == f"/media/{dialect}/default"
    query = {name: values[0] for name, values in parse_qs(address.query).items()}
    (start,) = [data for name, data in steps if name == "eval"]
    words = re.fullmatch(rf"\$\{{{module}\((.*)\)\}}", start)[1].split(" ")  # type: ignore[index]
    assert words[:3] == ["${uuid}", "start", "${talkspurt_url}"]
    rate = {"8k": 8000, "16k": 16000}[words[4]]
    (started,) = [message for message in serializer(dialect, query).decode("{}") if isinstance(message, StreamStarted)]
    assert (started.call_sid, started.inbound.sample_rate) == ("u-1", rate)
    assert started.custom_parameters["talkspurt.From"] == "+15550100"
    assert started.custom_parameters["talkspurt.To"] == "7100"
    assert ("set", "send_silence_when_idle=-1") in steps, "park sends nothing by itself"
    assert len(words) in (5, 10), "the fork module counts its options only where all are given"


def test_scripts_that_the_dialplan_runs_are_there() -> None:
    scripts = [data for ext in ("talkspurt_ivr", "talkspurt_after") for name, data in actions(ext) if name == "lua"]
    assert len(scripts) == 2
    assert all((CONFIGS / "freeswitch" / script).exists() for script in scripts)


# --- Lua ---

SWITCH = """
done = {}
local function note(...) table.insert(done, table.concat({...}, " ")) end
session = {}
function session:answer() note("answer") end
function session:ready() return true end
function session:get_uuid() return "u-1" end
-- Of FreeSWITCH (docs/phrase/phrase_en.xml).
local sounds = {["ivr/ivr-please_enter_the.wav"] = true, ["ivr/ivr-account_number.wav"] = true}
function session:playAndGetDigits(min, max, tries, timeout, ends, file)
  for name in file:gsub("^file_string://", ""):gmatch("[^!]+") do
    if not sounds[name] then return "" end  -- a file that cannot be opened ends all tries at once
  end
  return digits
end
function session:getVariable(name) return variables[name] end
function session:setVariable(name, value) variables[name] = value end
function session:execute(...) note(...) end
function session:hangup(cause) note("hangup", cause) end
function session:transfer(...) note("transfer", ...) end
freeswitch = {consoleLog = function(...) end}
function freeswitch.API()
  return {executeString = function(self, command)
    note(command)
    if command:find("^global_getvar") then return "t0ken" end
    return answer
  end}
end
"""


def run(script: str, variables: dict[str, str], *, digits: str = "", answer: str = "+OK Success") -> tuple[Any, Any]:
    """Run a script; return its actions and the channel's variables after it."""
    lua = lupa.LuaRuntime()
    globals_ = lua.globals()
    globals_.variables = lua.table_from(variables)
    globals_.digits = digits
    globals_.answer = answer
    lua.execute(SWITCH)
    lua.execute((CONFIGS / "freeswitch" / script).read_text())
    return list(globals_.done.values()), dict(globals_.variables.items())


def test_the_ivr_hands_its_caller_over_with_what_it_knows() -> None:
    known = {"caller_id_number": "+1 555", "destination_number": "7102"}
    done, variables = run("talkspurt_ivr.lua", known, digits="4711")
    start = next(command for command in done if command.startswith("uuid_audio_stream"))
    words = start.split(" ")
    assert words[:3] == ["uuid_audio_stream", "u-1", "start"] and words[4:] == ["mono", "8k"]
    address = urlsplit(words[3])
    assert parse_qs(address.query) == {
        "uuid": ["u-1"], "rate": ["8000"], "talkspurt.From": ["+1 555"], "talkspurt.To": ["7102"], "account": ["4711"],
    }  # fmt: skip
    assert variables["STREAM_EXTRA_HEADERS"] == '{"Authorization":"Bearer t0ken"}'
    assert done[-1] == "park" and variables["send_silence_when_idle"] == "-1"


def test_the_ivr_says_so_when_there_is_no_bot() -> None:
    done, _ = run("talkspurt_ivr.lua", {}, digits="4711", answer="-ERR Operation Failed")
    assert done[-1] == "hangup NORMAL_TEMPORARY_FAILURE"


@pytest.mark.parametrize(
    ("handoff", "reason", "done"),
    [
        ("%7B%22queue%22%3A%20%22billing%22%7D", "end", "transfer 7201 XML default"),
        ("talk%20to%20somebody", "end", "transfer 7200 XML default"),
        ("", "dialogue_failed", "transfer 7200 XML default"),
        ("", "end", "hangup NORMAL_CLEARING"),
    ],
)
def test_what_the_bot_left_decides(handoff: str, reason: str, done: str) -> None:
    assert run("talkspurt_after.lua", {"talkspurt_handoff": handoff, "talkspurt_reason": reason})[0] == [done]


# --- Asterisk; a real one runs these files in tests/peers/asterisk ---


def test_asterisks_client_is_the_one_that_the_dialplan_dials() -> None:
    client = configparser.ConfigParser(inline_comment_prefixes=";")
    client.read(CONFIGS / "asterisk/websocket_client.conf")
    dialled = re.findall(r"Dial\(WebSocket/(\w+)/", (CONFIGS / "asterisk/extensions.conf").read_text())
    assert set(dialled) == {*client.sections(), "INCOMING"}
    for name in client.sections():
        assert urlsplit(client[name]["uri"]).path.startswith("/media/asterisk/")
        assert client[name]["protocols"] in serializer("asterisk").subprotocols


def asterisk_lines() -> list[str]:
    """The dialplan without comments."""
    text = (CONFIGS / "asterisk/extensions.conf").read_text()
    return [line.partition(";")[0].strip() for line in text.splitlines() if line.partition(";")[0].strip()]


def test_the_dialplan_keeps_only_characters_of_numbers_and_extensions_of_a_target() -> None:
    """Else a target may bring arguments of Dial(), other channels by ``&``, or parts of an expression."""
    (read,) = [line for line in asterisk_lines() if "transferTarget" in line]
    (kept,) = re.findall(
        r"Set\(TALKSPURT_TARGET=\$\{FILTER\(([^,]*),\$\{JSON_DECODE\(json,transferTarget\)\}\)\}\)", read
    )
    assert kept == r"0-9A-Za-z+*#_.\x2D"


def test_the_dialplan_dials_a_target_only_as_a_number() -> None:
    dials = [line for line in asterisk_lines() if "Dial(PJSIP/" in line]
    assert [line.partition(",")[2] for line in dials] == ["Dial(PJSIP/${number})", "Dial(PJSIP/reception)"]
    lines = asterisk_lines()
    at = lines.index(dials[0])
    assert lines[at - 2].endswith("Set(LOCAL(number)=${FILTER(0-9+*#,${TALKSPURT_TARGET})})")
    assert lines[at - 1].endswith('GotoIf($["${number}" != "${TALKSPURT_TARGET}"]?refuse)'), "not what is left of it"


@pytest.mark.parametrize("sample", sorted((CONFIGS / "freeswitch").iterdir()), ids=lambda path: path.name)
def test_no_freeswitch_sample_dials_what_the_bot_asked_for(sample: Path) -> None:
    """The gateway moves the channel itself; the variable is for reading."""
    text = re.sub(r"<!--.*?-->", "", sample.read_text(), flags=re.S)
    assert "talkspurt_target" not in text
