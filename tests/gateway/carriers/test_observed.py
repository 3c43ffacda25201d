"""Calls that others have seen must begin, with the right format, ids and parameters; so must calls with one field of
another type."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.carriers.caller import incoming_call
from gateway.carriers.table import CARRIERS
from gateway.errors import ProtocolError
from gateway.seams.media_messages import DtmfReceived, Reply, StreamStarted
from tests.gateway.carriers.observed import CALLS, Data, ObservedCall, started

each = pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.dialect}: {call.name}")


def test_every_dialect_has_observed_calls() -> None:
    assert {call.dialect for call in CALLS} == set(CARRIERS)


@each
def test_an_observed_call_begins_as_it_was_meant(call: ObservedCall) -> None:
    if not call.begins and call.dialect != "genesys":
        with pytest.raises(ProtocolError) as refusal:
            started(call)
        assert refusal.value.code == "unsupported_encoding"
        return
    _, messages = started(call)
    starts = [message for message in messages if isinstance(message, StreamStarted)]
    if not call.begins:
        (answer,) = messages
        assert isinstance(answer, Reply) and json.loads(answer.data)["type"] == "opened"
        return
    (start,) = starts
    incoming = incoming_call(start, route="default", transport=call.dialect)
    found = {
        "encoding": start.inbound.encoding,
        "sample_rate": start.inbound.sample_rate,
        "frame_bytes": start.outbound.frame_bytes,
        "from": start.from_,
        "to": start.to,
        "call_sid": start.call_sid,
        "custom_parameters": dict(start.custom_parameters),
        "direction": incoming.direction,
        "call_status": incoming.call_status,
        "digits": "".join(message.digit for message in messages if isinstance(message, DtmfReceived)),
    }
    assert {name: found[name] for name in call.expect} == call.expect


MISSING = object()
ODD: dict[str, Any] = {
    "missing": MISSING, "null": None, "number": 7, "text": "x", "list": ["x"], "object": {"x": "y"}, "true": True,
}  # fmt: skip

REASONS: dict[tuple[str, str], str] = {
    ("genesys", "media[0]"): "without its only entry, the list offers no sound",
}
"""Fields that may end a call, with the reason. They are named by their dialect and the end of their path."""


def variants(call: ObservedCall) -> Iterator[tuple[str, str, list[Data]]]:
    """Yield the call's messages with one value replaced: the path of the value, the kind of the replacement, and the
    messages."""
    for index, data in enumerate(call.received):
        try:
            body = json.loads(data) if isinstance(data, str) else None
        except ValueError:
            continue
        for path in _paths(body, ()):
            for kind, odd in ODD.items():
                changed = json.loads(str(data))
                parent: Any = changed
                for key in path[:-1]:
                    parent = parent[key]
                if odd is not MISSING:
                    parent[path[-1]] = odd
                elif isinstance(parent, dict):
                    del parent[path[-1]]
                else:
                    parent.pop(path[-1])
                name = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")
                yield name, kind, [*call.received[:index], json.dumps(changed), *call.received[index + 1 :]]


def _paths(body: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    entries: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(body, dict):
        entries = iter(body.items())
    elif isinstance(body, list):
        entries = iter(enumerate(body))
    for key, value in entries:
        yield (*path, key)
        yield from _paths(value, (*path, key))


@pytest.mark.parametrize(
    "call", [call for call in CALLS if call.begins], ids=lambda call: f"{call.dialect}: {call.name}"
)
def test_one_odd_field_never_refuses_a_call_without_a_reason(call: ObservedCall) -> None:
    refused = set()
    for path, kind, received in variants(call):
        try:
            _, messages = started(call, received)
            starts = [message for message in messages if isinstance(message, StreamStarted)]
            begins = len(starts) == 1
            for start in starts:
                texts = [start.stream_id, start.call_sid, start.account_sid, start.from_, start.to, start.direction]
                assert all(isinstance(text, str) for text in texts)
                parameters = start.custom_parameters.items()
                assert all(isinstance(key, str) and isinstance(value, str) for key, value in parameters)
        except ProtocolError:
            begins = False
        reasons = [where for dialect, where in REASONS if dialect == call.dialect and path.endswith(where)]
        if not begins and not reasons:
            refused.add((path, kind))
    assert not refused
