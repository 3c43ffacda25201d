"""The seam between gateway and speech engine: values and Protocols, nothing that runs.

An utterance is one turn in the making. Text goes up in deltas, audio comes down in ready frames of the format
that the request names. The phone's position goes up, so that the engine can first serve the caller whose sound ends
first. Any class that implements ``SpeechEngine`` (the gRPC client, the in-process engine) can serve the gateway.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from voicecodecs.registry import AudioFormat

REFERENCE_S = (1.0, 30.0)
"""Shortest and longest recording from which a voice is made, seconds."""

REFERENCE_HZ = (16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 88_200, 96_000, 176_400, 192_000)
"""Sample rates of recordings that are accepted, Hz. Others are refused because the resampler's kernel could be huge: 6
GB at 47,999 Hz."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UtteranceRequest:
    """Everything that is known of an utterance before its first word."""

    utterance_id: str
    format: AudioFormat = AudioFormat()
    voice: str = ""
    """Registered voice id. Empty: the engine's default voice."""
    language: str = ""
    """BCP 47 tag, e.g. ``en-US``. Empty: the voice's own language."""
    speed: float = 1.0
    """Speaking rate, 0.25 to 4; 1 is the voice's own."""
    instruct: str = ""
    """Style instruction, for models that take one."""
    ahead: bool = False
    """True while no caller waits for the sound (a held turn, or one that is queued after another). Other utterances are
    then served first."""
    priority: int = 5
    """Priority from 0 to 9. If the engine has no place for all, larger numbers are served first. 10: the turn is being
    heard already."""
    model: str = ""
    """Name of the loaded model that speaks. Empty: the active one."""
    at_once: bool = False
    """True: if the engine has no place now, it refuses the utterance at once. For clients that have other engines."""


class TextSpan(NamedTuple):
    """A word and the time at which it is heard. Characters count in the text that was fed, concatenated verbatim.

    This is a tuple, because one is made for each word of each call, and a frozen dataclass takes ten times as long.
    """

    start_char: int
    end_char: int
    first_sample: int
    """Sample of the utterance, at the format's ``sample_rate``, at which the word begins."""
    end_sample: int
    exact: bool = True
    """False: the position is estimated from expected durations, not taken from the network's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioChunk:
    """The next piece of an utterance. Chunks follow each other without a hole."""

    frames: Sequence[bytes]
    """Encoded payloads, each exactly one ptime long. The last one of a clause is padded with silence."""
    first_sample: int
    """Position of the first sample within the utterance, at the format's ``sample_rate``."""
    samples: int
    spans: Sequence[TextSpan] = ()
    clause_end_char: int = 0
    """End of the text that this piece was made of, in the text that was fed. 0: it was not made of text."""
    stages_ms: dict[str, float] = field(default_factory=dict)
    """Milliseconds that each stage took for this chunk; ``docs/latency.md`` explains the names. For the first chunk
    they add up to the time since the last character of its clause came."""
    engine: str = ""
    """Name of the voice model that made the sound (``embedded``, ``cosyvoice3`` ...), or ``clip``."""


class Utterance(Protocol):
    """One utterance in the making. Use it with ``async with``: leaving cancels it before the next step of the
    engine."""

    def feed(self, text: str) -> None:
        """Append text; deltas are concatenated verbatim. Speech may start at the end of the first clause.

        Never raises: text after ``end_text``, or more than ``speech.max_chars`` in all, fails the utterance, and the
        iteration raises ``InvalidRequest``. Text that comes after a failure or ``aclose`` is ignored.
        """
        ...

    def end_text(self) -> None:
        """End the text. The text that is left is spoken to its end. Idempotent."""
        ...

    def played(self, samples: int, *, at: float) -> None:
        """Note that the caller had heard ``samples`` of this utterance at monotonic second ``at``. Clears ``ahead``."""
        ...

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        """Yield chunks in order, until all fed text is spoken.

        Raises:
            EngineError: this utterance failed, or its engine was closed. Nothing follows.
        """
        ...

    async def aclose(self) -> None:
        """Cancel the work that is left, which ends the iteration. Idempotent."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceInfo:
    """A voice as the registry shows it."""

    voice_id: str
    name: str
    languages: Sequence[str]
    engine: str
    registered: bool = False
    """True for voices that a user added; only these can be removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """State of an engine, for ``/v1/health`` and readiness."""

    ready: bool
    engine: str
    """``embedded``, ``cosyvoice2``, ``cosyvoice3`` ..."""
    model: str
    models: Sequence[str] = ()
    gpu: str = ""
    vllm: str = ""
    active: int = 0
    queued: int = 0
    queue_s: float = 0.0
    """Recent wait of new utterances until work on their first sound began, seconds."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelToLoad:
    """A model for an engine to load in addition to the models that it has."""

    name: str
    """The model's name from then on: 1 to 40 small letters, digits and ``._-``."""
    folder: str = ""
    """The model's folder within ``engine.models_folder``. Empty for models that need none."""
    kind: str = ""
    """``embedded``, ``cosyvoice3`` ... Empty: the folder's content decides."""
    device: str = ""
    """``cpu``, ``cuda`` ... Empty: the engine's device."""
    cosyvoice: str = ""
    """JSON object of keys of ``engine.cosyvoice`` that replace the engine's values. Empty: none."""


class SpeechEngine(Protocol):
    """Makes utterances. All methods raise ``tts_engine.errors.EngineError`` and nothing else."""

    def open(self, request: UtteranceRequest) -> Utterance:
        """Begin an utterance, on the event loop. This is cheap: nothing is synthesised before text is fed.

        A refusal is raised here or in the iteration, because an engine in another process answers later.
        """
        ...

    async def list_voices(self) -> Sequence[VoiceInfo]: ...

    async def add_voice(
        self, *, voice_id: str, name: str, wav: bytes | bytearray, transcript: str, language: str
    ) -> VoiceInfo:
        """Register a voice from reference audio and its transcript.

        The audio is a WAV file, mono or stereo, with a rate of ``REFERENCE_HZ`` and a length within ``REFERENCE_S``.
        """
        ...

    async def remove_voice(self, voice_id: str) -> None: ...

    async def set_active_model(self, model: str) -> None: ...

    async def load_model(self, model: ModelToLoad) -> None:
        """Load another model and return when it is warm. If that fails, nothing has changed."""
        ...

    async def unload_model(self, name: str) -> None:
        """Unload a model that ``load_model`` has loaded. Its utterances may finish; new ones are refused at once."""
        ...

    async def status(self) -> EngineStatus: ...

    async def aclose(self) -> None: ...
