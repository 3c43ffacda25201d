"""Reads messages of the media server strictly: exact keys, exact types."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any

import orjson

from talkspurt.simulator.carriers.carrier import Command, MediaFrame, Violation

Shape = Mapping[str, Any]
"""Key -> the type of its value, its only allowed value, or the shape of the object there."""


def parsed(message: bytes, shapes: Mapping[str, Shape], key: str) -> dict[str, Any] | Violation:
    """Parse a text message that has one of these shapes. The string at ``key`` selects the shape."""
    try:
        body = orjson.loads(message)
    except orjson.JSONDecodeError:
        return Violation(f"not JSON, {len(message)} bytes")
    if not isinstance(body, dict):
        return Violation(f"expected a JSON object, got {type(body).__name__}")
    kind = body.get(key)
    if not isinstance(kind, str) or kind not in shapes:
        return Violation(f"unknown {key}, known are {sorted(shapes)}")
    problem = _problem(body, {key: kind, **shapes[kind]}, kind)
    return Violation(problem) if problem else body


def _problem(body: Any, shape: Shape, where: str) -> str:
    if not isinstance(body, dict) or body.keys() != shape.keys():
        got = sorted(body) if isinstance(body, dict) else type(body).__name__
        return f"{where} has the keys {got}, expected {sorted(shape)}"
    for key, expected in shape.items():
        value = body[key]
        if isinstance(expected, Mapping):
            if problem := _problem(value, expected, f"{where}.{key}"):
                return problem
        elif isinstance(expected, type):
            if not isinstance(value, expected) or isinstance(value, bool) is not (expected is bool):
                return f"{where}.{key} is {type(value).__name__}, expected {expected.__name__}"
        elif value != expected:
            return f"{where}.{key} is not the value that this stream has"
    return ""


def audio(payload: str, *, sample_bytes: int = 1) -> Command:
    """Read base64 audio of whole samples."""
    try:
        data = binascii.a2b_base64(payload, strict_mode=True)
    except ValueError:
        return Violation("payload is not base64")
    return whole(data, sample_bytes)


def whole(data: bytes, sample_bytes: int) -> Command:
    """Read audio of whole samples, at least one."""
    if not data or len(data) % sample_bytes:
        return Violation(f"audio of {len(data)} bytes, expected a whole number of samples of {sample_bytes}")
    return MediaFrame(data)
