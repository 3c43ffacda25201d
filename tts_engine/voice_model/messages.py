"""Messages between the engine's process and a voice model's process.

A clause goes ``Speak``, ``Placed``, ``Chunk``, ``NextChunk``, ``Chunk``, ``NextChunk``, ..., ``Done``. Clauses are
numbered by the engine's process. There is one ``Done`` for each ``Speak``. It is the last message of the clause: the
model then holds nothing of the clause any more. So at most one chunk of each clause is on its way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tts_engine.api import EngineStatus, VoiceInfo
from tts_engine.errors import EngineError
from tts_engine.synthesizer import ClauseRequest, PcmChunk
from tts_engine.voice_model.hearing import HeardPosition


class Speak(NamedTuple):
    """To the model: begin a clause. If ``grows``, ``MoreText`` follows."""

    number: int
    clause: ClauseRequest
    """The clause, without ``more`` and ``placed``."""
    grows: bool
    heard: HeardPosition


class MoreText(NamedTuple):
    """To the model: more text of a clause that grows. None: that was all."""

    number: int
    text: str | None


class NextChunk(NamedTuple):
    """To the model: continue the clause."""

    number: int
    heard: HeardPosition


class Hear(NamedTuple):
    """To the model: the urgency of the clause has changed."""

    number: int
    heard: HeardPosition


class Close(NamedTuple):
    """To the model: the clause is no longer wanted."""

    number: int


class Placed(NamedTuple):
    """From the model: it has a place for the clause."""

    number: int


class Chunk(NamedTuple):
    """From the model: the next sound of a clause."""

    number: int
    chunk: PcmChunk


class Done(NamedTuple):
    """From the model: the clause has ended. None: without an error."""

    number: int
    error: EngineError | None


class Ready(NamedTuple):
    """From the model: it is loaded and warm."""

    voices: Sequence[VoiceInfo]
    """The model's built-in voices."""


class LoadFailed(NamedTuple):
    """From the model: it could not be loaded."""

    error: EngineError


class Report(NamedTuple):
    """From the model, ten times a second: its status and the observer's calls."""

    status: EngineStatus
    counted: Sequence[tuple[str, tuple[Any, ...], Mapping[str, Any]]]
    """Calls of the observer's methods since the last report: name and arguments."""
