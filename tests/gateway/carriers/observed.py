"""Calls that others have seen, from ``tests/vectors/carriers/observed``."""

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from gateway.carriers.dialect import Dialect
from gateway.errors import ProtocolError
from gateway.seams.media_messages import MediaReceived, Message, StreamStarted
from tests.gateway.carriers.made import serializer

FOLDER = Path(__file__).parents[2] / "vectors/carriers/observed"

Data = str | bytes


@dataclass(frozen=True, kw_only=True)
class ObservedCall:
    """One call: the peer's messages, and what they mean."""

    dialect: str
    name: str
    query: dict[str, str]
    received: list[Data]
    expect: dict[str, Any]

    @property
    def begins(self) -> bool:
        return bool(self.expect.get("begins", True))


def _silence(match: re.Match[str]) -> str:
    return base64.b64encode(bytes(int(match[1]))).decode()


def _message(written: Any) -> Data:
    return bytes(written["bytes"]) if isinstance(written, dict) else re.sub(r"<(\d+) bytes>", _silence, written)


def _read(path: Path) -> list[ObservedCall]:
    return [
        ObservedCall(
            dialect=path.stem,
            name=call["name"],
            query=dict(parse_qsl(call["query"].removeprefix("?"))),
            received=[_message(written) for written in call["received"]],
            expect=call["expect"],
        )
        for call in json.loads(path.read_text())
    ]


CALLS: list[ObservedCall] = [call for path in sorted(FOLDER.glob("*.json")) for call in _read(path)]


def decoded(dialect: Dialect, received: list[Data]) -> list[Message]:
    """Decode messages as the connection does: unreadable ones before the start are skipped, unless the error ends the
    call. A peer that announces nothing begins without metadata."""
    messages: list[Message] = []
    for data in received:
        try:
            messages += dialect.decode(data)
        except ProtocolError as exc:
            if exc.code == "unsupported_encoding":
                raise
    if not any(isinstance(message, StreamStarted) for message in messages):
        if any(isinstance(message, MediaReceived) for message in messages):
            messages += dialect.without_metadata()
    return messages


def started(call: ObservedCall, received: list[Data] | None = None) -> tuple[Dialect, list[Message]]:
    """Decode a call's messages with a new dialect of default settings."""
    dialect = serializer(call.dialect, call.query)
    return dialect, decoded(dialect, call.received if received is None else received)
