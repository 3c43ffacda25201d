"""The bytes that each dialect, webhook and proof gives for a scripted call, compared with those of ``tests/vectors``.

A file holds the script and what it gives. ``python -m tests.gateway.carriers.test_wire_vectors`` plays the scripts
again and writes what they give now, for a change that is meant; ``git diff`` then shows the change on the wire.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.call.directory import LocalDirectory
from gateway.call.handoff import Handoffs
from gateway.carriers.proof import Upgrade
from gateway.carriers.table import CARRIERS, CarriersConfig
from gateway.config import RouteConfig, ServerConfig
from gateway.errors import ProtocolError, Rejected
from gateway.http.request import errors
from gateway.http.webhooks import Webhooks
from gateway.listener.forwarded import PublicUrl
from gateway.listener.stream_claims import StreamClaims
from gateway.seams.shared_state import Handoff
from gateway.tokens import Tokens
from tests.gateway.carriers.made import configured, serializer

FOLDER = Path(__file__).parents[2] / "vectors/carriers"
PUBLIC = "https://voice.example.com"

Json = dict[str, Any]


class FixedTokens(Tokens):
    """A token that can be written down."""

    def make(self, dialect: str, route: str, *, now: float, call: str = "", token_id: bytes = b"") -> str:
        return f"TOKEN-of-{call or 'any'}"


def plain(value: Any) -> Any:
    """What a dialect gives, as JSON."""
    if isinstance(value, bytes):
        try:
            return value.decode("ascii")
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    return value if value is None else repr(value)


def given(value: Any) -> Any:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


def played(dialect: str, stream: Json) -> Json:
    """A stream's steps with what each gives: messages, bytes, or the error that names the fault."""
    spoken = serializer(dialect, stream["query"], **stream["settings"])
    steps = []
    for step in stream["steps"]:
        name, *arguments = (given(part) for part in step["do"])
        try:
            gave = getattr(spoken, name)(*arguments)
            gives = [plain(message) for message in gave] if name == "decode" else plain(gave)
        except (ProtocolError, ValueError) as exc:
            gives = f"{type(exc).__name__}: {exc}"
        steps.append({**step, "gives": gives})
    shape = ("name", "subprotocols", "max_lead_ms", "call_outlives_stream", "has_marks", "has_clear", "media_is_text")
    return {**stream, "steps": steps, "is": {name: repr(getattr(spoken, name)) for name in shape}}


async def asked(dialect: str, hook: Json) -> Json:
    """A webhook's request with its answer."""
    handoffs = Handoffs()
    if "left" in hook:
        handoffs.leave(dialect, "c1", Handoff("VX1", **hook["left"]))
    server = ServerConfig(public_url=PUBLIC) if hook["outside"] else ServerConfig()
    hooks = Webhooks(
        PublicUrl(server),
        CarriersConfig.model_validate({} if hook["settings"] is None else {dialect: hook["settings"]}).configured(),
        {"default": RouteConfig(), "sales": RouteConfig()},
        FixedTokens(None, lifetime_s=60),
        handoffs,
        StreamClaims(LocalDirectory(limit=1), None, keep_s=60).is_spent,
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
        await client.close()
    return {**hook, "gives": gives}


def opened(dialect: str, upgrade: Json) -> Json:
    """A media upgrade with its outcome."""
    tokens = Tokens("shared", lifetime_s=60)
    target = upgrade["target"].replace("TOKEN", tokens.make(dialect, "default", now=upgrade["now"]))
    request = Upgrade(public_url=PUBLIC, target=target, headers=upgrade["headers"], now=upgrade["now"])
    try:
        token = configured(dialect, **upgrade["settings"]).check_upgrade(tokens, "default", request)
        gives = "the carrier's proof" if token is None else "our token"
    except Rejected as exc:
        gives = f"{exc.status} {exc.code}: {exc}"
    return {**upgrade, "gives": gives}


async def again(path: Path) -> Json:
    """A file's script, played."""
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


def main() -> None:
    """Write every file anew."""
    for path in sorted(FOLDER.glob("*.json")):
        path.write_text(json.dumps(asyncio.run(again(path)), indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
