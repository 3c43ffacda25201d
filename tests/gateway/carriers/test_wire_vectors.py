"""Plays the scripted calls of ``tests/vectors/carriers`` and compares what dialects, webhooks and proofs give.

Its README describes the files. ``python -m tests.gateway.carriers.test_wire_vectors`` writes them anew.
"""

import asyncio
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.call.directory import LocalDirectory
from gateway.call.handoff import Handoffs
from gateway.carriers.carrier import token_in
from gateway.carriers.dialect import Dialect
from gateway.carriers.proof import Upgrade
from gateway.carriers.table import CARRIERS, CarriersConfig
from gateway.cluster.memory_state import MemoryState
from gateway.config import RouteConfig, ServerConfig
from gateway.errors import ProtocolError, Rejected
from gateway.http.request import errors
from gateway.http.webhooks import Webhooks
from gateway.listener.forwarded import PublicUrl
from gateway.listener.sites import Sites
from gateway.listener.stream_claims import StreamClaims
from gateway.seams import media_messages
from gateway.seams.shared_state import Handoff
from gateway.tokens import Tokens
from tests.gateway.carriers.made import configured, serializer
from voicecodecs.registry import AudioFormat

FOLDER = Path(__file__).parents[2] / "vectors/carriers"
PUBLIC = "https://voice.example.com"

Json = dict[str, Any]


class FixedTokens(Tokens):
    """A token that can be written down."""

    def make(self, dialect: str, route: str, *, now: float, call: str = "", token_id: bytes = b"") -> str:
        return f"TOKEN-of-{call or 'any'}"


TYPES = {
    media_messages.StreamStarted: "started",
    media_messages.MediaReceived: "media",
    media_messages.DtmfReceived: "dtmf",
    media_messages.MarkReached: "mark",
    media_messages.PlayoutCleared: "cleared",
    media_messages.PlaybackStarted: "playback started",
    media_messages.PlaybackCompleted: "playback completed",
    media_messages.StreamStopped: "stopped",
    media_messages.Reply: "reply",
    media_messages.FlowControl: "flow control",
    media_messages.PeerError: "peer error",
    media_messages.Ignored: "ignored",
    media_messages.UnknownEvent: "unknown",
}
"""The names that the vectors give to the messages. They do not change when a class is renamed."""


def plain(value: Any) -> Any:
    """Return a value of a dialect as JSON. Bytes are a string if they are readable, else ``{"hex": ...}``."""
    if isinstance(value, bytes):
        readable = value.isascii() and value.decode().isprintable()
        return value.decode() if readable else {"hex": value.hex()}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, AudioFormat):
        return {"encoding": value.encoding, "sample_rate": value.sample_rate, "ptime_ms": value.ptime_ms}
    if isinstance(value, tuple):
        return list(value)
    return value


def message(value: media_messages.Message) -> Json:
    """Return a decoded message as JSON: its type and its fields."""
    fields = {field.name.rstrip("_"): plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return {"type": TYPES[type(value)], **fields}


def given(value: Any) -> Any:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


def played(dialect: str, stream: Json) -> Json:
    """Return a stream with what each step gives: the messages decoded, or the bytes sent."""
    spoken = serializer(dialect, stream["query"], **stream["settings"])
    shape = ("subprotocols", "max_lead_ms", "call_outlives_stream", "has_marks", "has_clear", "media_is_text")
    steps = [received(spoken, step) if "received" in step else sent(spoken, step) for step in stream["steps"]]
    return {**stream, "steps": steps, "is": {name: plain(getattr(spoken, name)) for name in shape}}


def received(spoken: Dialect, step: Json) -> Json:
    """Return a step with the messages in the peer's bytes, or with ``error`` if they are refused."""
    data = given(step["received"])
    binary = isinstance(data, bytes)
    is_media = spoken.is_media(data if binary else data.encode(), binary=binary)
    try:
        gives: Any = [message(each) for each in spoken.decode(data)]
    except ProtocolError:
        gives = "error"
    return {"received": step["received"], "is_media": is_media, "gives": gives}


def sent(spoken: Dialect, step: Json) -> Json:
    """Return a step with the bytes that we send for it; None: this dialect has no such message."""
    name, *arguments = step["send"]
    return {"send": step["send"], "gives": plain(getattr(spoken, name)(*(given(one) for one in arguments)))}


async def asked(dialect: str, hook: Json) -> Json:
    """Return a webhook's request with its answer."""
    handoffs = Handoffs()
    if "left" in hook:
        handoffs.leave(dialect, "c1", Handoff("VX1", **hook["left"]))
    server = ServerConfig(public_url=PUBLIC) if hook["outside"] else ServerConfig(origins=("http://talkspurt.test",))
    hooks = Webhooks(
        PublicUrl(server),
        Sites(server, PublicUrl(server)),
        CarriersConfig.model_validate({} if hook["settings"] is None else {dialect: hook["settings"]}).configured(),
        {"default": RouteConfig(), "sales": RouteConfig()},
        FixedTokens(None, lifetime_s=60),
        handoffs,
        StreamClaims(LocalDirectory(limit=1), None, keep_s=60),
        MemoryState(),
    )
    app = web.Application(middlewares=[errors.middleware])
    for path, handler in (("/after", hooks.after), ("/status", hooks.status), ("", hooks.start)):
        app.router.add_route("*", "/webhooks/{dialect}/{route}" + path, handler)
    client = TestClient(TestServer(app))
    await client.start_server()
    try:
        # The address of the request is part of the answer where the configuration names none.
        headers = {"Host": "talkspurt.test", **hook["headers"]}
        data = hook["body"].encode() if "body" in hook else None
        async with client.request(hook["method"], hook["path"], headers=headers, data=data) as answer:
            gives = {"status": answer.status, "type": answer.content_type, "body": await answer.text()}
    finally:
        await hooks.aclose()
        await client.close()
    return {**hook, "gives": gives}


def opened(dialect: str, upgrade: Json) -> Json:
    """Return a media upgrade with its outcome."""
    tokens = Tokens("shared", lifetime_s=60)
    target = upgrade["target"].replace("TOKEN", tokens.make(dialect, "default", now=upgrade["now"]))
    request = Upgrade(public_url=PUBLIC, target=target, headers=upgrade["headers"], now=upgrade["now"])
    try:
        token = configured(dialect, **upgrade["settings"]).check_upgrade(tokens, "default", request)
        gives = "our token" if token is not None and token_in(target) else "the carrier's proof"
    except Rejected as exc:
        gives = f"{exc.status} {exc.code}"
    return {**upgrade, "gives": gives}


async def again(path: Path) -> Json:
    """Play a file's script. Return the script with what it gives now."""
    dialect, script = path.stem, json.loads(path.read_text())
    return {
        "streams": [played(dialect, stream) for stream in script["streams"]],
        "webhooks": [await asked(dialect, hook) for hook in script["webhooks"]],
        "upgrades": [opened(dialect, upgrade) for upgrade in script["upgrades"]],
    }


@pytest.mark.parametrize("dialect", CARRIERS)
async def test_the_wire_stays_as_it_was_recorded(dialect: str) -> None:
    path = FOLDER / f"{dialect}.json"
    assert await again(path) == json.loads(path.read_text())


def written(script: Json) -> str:
    """Return a script as JSON text with a line for each step."""
    steps = [stream["steps"] for stream in script["streams"]]
    marked = {**script, "streams": [{**stream, "steps": f"STEPS {at}"} for at, stream in enumerate(script["streams"])]}
    text = json.dumps(marked, indent=1)
    for at, each in enumerate(steps):
        lines = ",\n".join("    " + json.dumps(step) for step in each)
        text = text.replace(f'"STEPS {at}"', f"[\n{lines}\n   ]", 1)
    return text + "\n"


def main() -> None:
    """Write every file anew."""
    for path in sorted(FOLDER.glob("*.json")):
        path.write_text(written(asyncio.run(again(path))))


if __name__ == "__main__":
    main()
