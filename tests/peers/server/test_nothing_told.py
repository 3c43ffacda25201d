"""Whatever happens in a run of the server, nothing that it prints or logs holds a secret, a word that was spoken, or a
digit that was pressed, and nothing that it answers or counts holds a secret.

Everything planted is one of ``PLANTED``; at the end all output is searched for each of them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.carriers.signatures import twilio_signature
from talkspurt.bench.server_process import ServerUnderTest
from tests.peers.live_server import START_S, RawSocket, Refused, child_environment, media_message, start_message
from tests.waiting import PATIENCE_S, until

SECRETS = {
    "API_KEY": "apikey-quetzal-9f3a",
    "WRONG_KEY": "wrongkey-marmot-77",
    "MANAGER_KEY": "managerkey-okapi-5521",
    "MANAGER_PASSWORD": "managerpass-tapir-88",
    "DIALOGUE_TOKEN": "dialoguetoken-ibex-31",
    "HEADER_SECRET": "headersecret-gnu-42",
    "TWILIO_TOKEN": "twiliotoken-lynx-64",
    "STREAM_SECRET": "streamsecret-stoat-19",
    "RECORDING_KEY": "c0ffee" * 10 + "beef",
    "ENGINE_TOKEN": "enginetoken-heron-77",
    "CLIP_KEY": "clipkey-civet-90",
}
WORDS = ("xylophonic", "zanzibarian", "quixotically")
"""Spoken by the bot, said by a manager in a broken message, and in a place where no word belongs."""
NUMBERS = ("4929123456781234", "73915550864", "15799990001")
"""A card in a text, keys, and the caller's telephone."""
PLANTED = (*SECRETS.values(), *WORDS, *NUMBERS)

CONFIG = """
server: {host: 127.0.0.1, port: 0, drain_s: 0, stream_token_secret: "${STREAM_SECRET}"}
engine: {kind: tone, token: "${ENGINE_TOKEN}"}
auth: {api_keys: [{key: "${API_KEY}"}]}
carriers: {twilio: {auth_token: "${TWILIO_TOKEN}"}}
recording: {folder: FOLDER, encrypt: "${RECORDING_KEY}", keep_days: 1}
routes:
  default: {recording: true, dialogue: {give_up_s: 1}, interruptible: any, report_input_during_agent_speech: any}
  lost:
    dialogue:
      url: "ws://me:${MANAGER_PASSWORD}@127.0.0.1:UNUSED/relay?api_key=${MANAGER_KEY}"
      headers: {X-Key: "${HEADER_SECRET}"}
      auth_token: "${DIALOGUE_TOKEN}"
      give_up_s: 0.1
limits: {errors_in_a_row: 100}
log: {level: debug, json_lines: true}
"""

BROKEN_VOICE = """
import sys

if "talkspurt.engines" in sys.orig_argv:
    from tts_engine.tone import ToneSynthesizer

    hum = ToneSynthesizer.synthesize

    def synthesize(self, clause, playhead):
        if "shatter" in clause.text:
            raise RuntimeError(f"cannot say {clause.text}")
        return hum(self, clause, playhead)

    ToneSynthesizer.synthesize = synthesize
"""
"""``sitecustomize.py``, which Python imports at its start: the engine's voice breaks at a word, and quotes the text."""


class Run:
    """The server and everything that it said."""

    def __init__(self, process: asyncio.subprocess.Process, output: Path, environment: dict[str, str]) -> None:
        self.process, self.output, self.environment = process, output, environment
        self.answers: list[str] = []
        """Bodies and messages that clients got."""

    @property
    def address(self) -> str:
        found = re.search(r"is ready: http://(\S+)/", self.output.read_text())
        return found[1] if found else ""

    async def request(self, method: str, path: str, *, key: str = SECRETS["API_KEY"], **more: Any) -> int:
        headers = {"Authorization": f"Bearer {key}"} | more.pop("headers", {})
        async with aiohttp.ClientSession() as http:
            async with http.request(method, f"http://{self.address}{path}", headers=headers, **more) as answer:
                self.answers.append(
                    f"{method} {path.partition('?')[0]}: {answer.status} {await answer.text(errors='replace')}"
                )
                return answer.status

    async def command(self, *words: str) -> int:
        """Another ``talkspurt`` command with the same environment."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "talkspurt", *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self.environment,
        )
        output, _ = await process.communicate()
        self.answers.append(f"talkspurt {words[0]}: {output.decode()}")
        assert process.returncode is not None
        return process.returncode


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Run]:
    config = folder / "talkspurt.yaml"
    (folder / "recordings").mkdir()
    config.write_text(CONFIG.replace("FOLDER", str(folder / "recordings")).replace("UNUSED", "1"))
    environment = {**child_environment(), **SECRETS}
    (folder / "sitecustomize.py").write_text(BROKEN_VOICE)
    environment["PYTHONPATH"] = os.pathsep.join((str(folder), environment["PYTHONPATH"]))
    output = folder / "output"
    with output.open("wb") as to:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "talkspurt", "serve", "-c", str(config)), stdout=to, stderr=to, env=environment
        )
    run = Run(process, output, environment)
    try:
        async with asyncio.timeout(START_S):
            while not run.address and process.returncode is None:
                await asyncio.sleep(0.01)
        yield run
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), PATIENCE_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def a_call_with_bad_input_on_both_sides(run: Run) -> str:
    """Return the call's id."""
    headers = [("Authorization", f"Bearer {SECRETS['API_KEY']}")]
    manager = await RawSocket.connect(run.address, "/v1/dialogue?route=default", headers=headers)
    carrier = await called(run, "default")
    setup = await manager.message("setup")
    at = setup["sessionId"]

    def say(**message: Any) -> None:
        manager.json(sessionId=at, **message)

    say(type="text", token=f"Your {WORDS[0]} card is {NUMBERS[0]}. ", last=True, turn="a")
    while (await manager.message("turn"))["event"] != "started":
        pass
    for digit in NUMBERS[1]:
        carrier.json(event="dtmf", streamSid=f"MZ{7:032x}", dtmf={"track": "inbound_track", "digit": digit})
    carrier.json(event="dtmf", streamSid=f"MZ{7:032x}", dtmf={"track": "inbound_track", "digit": NUMBERS[1]})
    carrier.json(event="media", streamSid=f"MZ{7:032x}", media={"payload": f"!{WORDS[2]}!"})
    carrier.json(event=WORDS[2], streamSid=NUMBERS[0])
    carrier.json(**media_message(base64.b64encode(WORDS[2].encode()).decode()))
    carrier.frame(f'{{"event": "{WORDS[2]}')
    carrier.json(event="start", start={"customParameters": WORDS[2]}, streamSid=f"MZ{7:032x}")
    say(type="text", token=f"It will shatter, {WORDS[0]}, {NUMBERS[0]}. ", last=True, turn="b")
    say(type="text", token=f"Unknown voice, {WORDS[0]}. ", last=True, turn="c", voice="nobody")
    for source in (f"https://127.0.0.1:1/a.wav?key={SECRETS['CLIP_KEY']}", f"{SECRETS['CLIP_KEY']}.wav", "http://x/"):
        say(type="play", source=source)
    bad: list[dict[str, Any]] = [
        {"type": "text", "token": [WORDS[1]]},
        {"type": "text", "token": WORDS[1], "last": WORDS[1]},
        {"type": "text", "token": WORDS[1], "interruptible": WORDS[1]},
        {"type": "text", "token": "x" * 100_000 + WORDS[1]},
        {"type": WORDS[1]},
        {"type": "sendDigits", "digits": f"{NUMBERS[1]}x"},
        {"type": "play", "source": 7},
        {"type": "cancel", "turn": WORDS[1]},
        {"type": "transfer", "target": f"sip:{NUMBERS[2]}@127.0.0.1", "handoffData": WORDS[1]},
        {"type": "subscribe", "media": WORDS[1]},
    ]
    for message in bad:
        say(**message)
    manager.frame(f'{{"type": "text", "token": "{WORDS[1]}')
    manager.frame(WORDS[1].encode())
    say(type="mark", name="last")
    errors = []
    while (message := await manager.next_message())["type"] != "mark":
        if message["type"] == "error":
            errors.append(f"dialogue error: {json.dumps(message)}")
    assert len(errors) >= len(bad)
    run.answers += errors
    await run.request("POST", f"/v1/calls/{at}/messages", json={"type": "text", "token": {"a": WORDS[1]}})
    await run.request("POST", f"/v1/calls/{at}/messages", data=f"{{{WORDS[1]}")
    await run.request("GET", "/metrics")
    say(type="text", token=f"And {WORDS[0]} until the engine dies, which takes a while. ", last=True, turn="d")
    while (await manager.message("turn")).get("turn") != "d":
        pass
    for pid in ServerUnderTest(run.address, run.process.pid).engine_pids():
        os.kill(pid, signal.SIGKILL)
    manager.abort()
    carrier.abort()
    return str(at)


async def called(run: Run, route: str) -> RawSocket:
    """A carrier's socket for a call of that route, by way of the webhook."""
    url = f"http://{run.address}/webhooks/twilio/{route}"
    form = {"CallSid": f"CA{7:032x}", "From": f"+{NUMBERS[2]}", "To": "+15550100", "AccountSid": f"AC{0:032x}"}
    signed = twilio_signature(SECRETS["TWILIO_TOKEN"], url, {name: [value] for name, value in form.items()})
    async with aiohttp.ClientSession() as http:
        async with http.post(url, data=form, headers={"X-Twilio-Signature": signed}) as answer:
            twiml = await answer.text()
    path = re.search(r'url="wss?://[^/]+(/[^"]+)"', twiml)
    assert path is not None, twiml
    carrier = await RawSocket.connect(run.address, path[1])
    carrier.json(**start_message(7, customParameters={"word": WORDS[2]}))
    return carrier


async def strangers_ask(run: Run) -> None:
    wrong = SECRETS["WRONG_KEY"]
    assert await run.request("GET", "/v1/calls", key=wrong) == 401
    assert await run.request("GET", f"/v1/calls?access_token={wrong}", headers={"Authorization": "Basic eDp4"}) == 401
    for path in (f"/v1/calls/{WORDS[2]}", f"/v1/{wrong}", f"/v1/calls/VX{'0' * 32}?api_key={wrong}", "/v1/calls/%ff"):
        assert await run.request("GET", path) >= 400
    with pytest.raises(Refused):
        await RawSocket.connect(run.address, f"/media/twilio/default/{wrong}?token={wrong}")
    with pytest.raises(Refused):
        await RawSocket.connect(run.address, f"/v1/dialogue?route=default&access_token={wrong}")
    form = {"From": f"+{NUMBERS[2]}", "SpeechResult": WORDS[2]}
    assert (
        await run.request("POST", "/webhooks/twilio/default", data=form, headers={"X-Twilio-Signature": wrong}) == 403
    )
    for body in ({"text": {"a": WORDS[1]}}, {"text": WORDS[1], "format": WORDS[1]}, {"text": f"shatter {WORDS[0]}"}):
        assert await run.request("POST", "/v1/tts", json=body) >= 400
    assert await run.request("POST", "/v1/tts", data=f"{{{WORDS[1]}") >= 400
    for line in (
        f"GET /?api_key={wrong} {WORDS[1]}\r\n\r\n",
        f"{WORDS[1]} {wrong}\r\n\r\n",
        f"GET / HTTP/1.1\r\n{wrong}\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection(*run.address.split(":"))
        writer.write(line.encode())
        run.answers.append(f"bad request: {(await reader.read(4096)).decode(errors='replace')}")
        writer.close()


async def test_no_output_holds_a_secret_a_word_or_a_digit_of_a_call(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        assert run.process.returncode is None, run.output.read_text()
        call_id = await a_call_with_bad_input_on_both_sides(run)
        carrier = await called(run, "lost")
        await carrier.closed()
        await strangers_ask(run)
        await until(lambda: '"child process serves"' in run.output.read_text(), "the engine's second life")
        await run.request("GET", "/v1/calls")
        await run.request("GET", "/v1/health")
        await run.request("GET", "/metrics")
    config = tmp_path / "talkspurt.yaml"
    assert await run.command("config", "show", str(config)) == 0
    wrong = tmp_path / "wrong.yaml"
    url = f"https://me:{SECRETS['MANAGER_PASSWORD']}@bot.example/?api_key={SECRETS['MANAGER_KEY']}"
    wrong.write_text(f"""
routes: {{a: {{dialogue: {{url: "{url}"}}}}, b: {{dialogue: {{url: "bot.example?api_key={SECRETS["MANAGER_KEY"]}"}}}}}}
recording: {{encrypt: {SECRETS["API_KEY"]}}}
engine: {{token: "{SECRETS["ENGINE_TOKEN"]} "}}
auth: {{api_keys: [{SECRETS["API_KEY"]}]}}
carriers: {{twilio: {SECRETS["TWILIO_TOKEN"]}}}
recogniser: {{url: "{url}", headers: {SECRETS["HEADER_SECRET"]}}}
""")
    assert await run.command("config", "check", str(wrong)) == 2

    written = run.output.read_text()
    for line in filter(None, written.splitlines()):
        greeting = ("talkspurt ", "  console ", "  web phone ", "route default cannot hear", "route lost cannot hear")
        assert line.startswith(("{", *greeting)), f"a line in another form: {line}"
    assert '"an utterance failed"' in written, "the voice has to break"
    found = [(plant, line) for plant in PLANTED for line in written.splitlines() if plant in line]
    of_call = [json.loads(line) for line in written.splitlines() if call_id[-16:] in line and line.startswith("{")]
    told = {entry["message"] for entry in of_call if entry.get("call") == call_id}
    # The process of the gateway, that of the engine, and the gateway before there was a call.
    assert told >= {"call began", "unreadable media message", "an utterance failed", "turn failed", "call ended"}, told
    assert "stream requested" in {entry["message"] for entry in of_call}
    # An answer may say what its own client has sent, and nothing else that was planted.
    found += [
        (s, answer) for s in {*SECRETS.values()} - {SECRETS["WRONG_KEY"]} for answer in run.answers if s in answer
    ]
    assert not found, "\n".join(f"{plant}: {line[:600]}" for plant, line in found)
