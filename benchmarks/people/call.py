"""One call on the virtual clock: the session, the uplink and turn-taking are the product's, and so are their networks.

The line, the room around the telephone, the caller, the manager, the engine and the recogniser are played here. The
recogniser is ideal unless one is given: it returns the words of every speaker in the sound that it is given. A
prompt without words of the caller is a false one; a real recogniser would understand some of these words wrongly or not
at all.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.people.rooms import RATE, Pcm
from gateway.call.defaults import turn_defaults
from gateway.call.hearing.listening import hearing
from gateway.call.joined.second_legs import SecondLegs
from gateway.call.session import Services, Session
from gateway.calling.policy import CallingPolicy
from gateway.config import BargeInConfig, CallingConfig, DialogueConfig, PlayoutConfig, RecogniserConfig, RouteConfig
from gateway.histogram import Histogram
from gateway.media.jitter_buffer import LOST
from gateway.media.playout import StartPolicy
from gateway.recognition.server import PARTIAL_MS
from gateway.recognition.turn_model import Judge
from gateway.seams.dialogue import DialogueSink
from gateway.seams.leg import CallInfo, UnbufferedLeg
from gateway.seams.messages import ExpectedReply, Inbound, Interrupt, Outbound, Prompt, Text, TurnEvent
from gateway.seams.recogniser import RecognitionEvents
from gateway.uplink.stream import Stream
from gateway.uplink.worker import UplinkWorker
from talkspurt.recognisers import suppressing_network
from tests.gateway.call.virtual_session import VirtualTicker
from tts_engine.api import AudioChunk, TextSpan, UtteranceRequest
from voicecodecs.pcm import to_float32, to_int16
from voicecodecs.registry import AudioFormat, decoder, encoder
from voicecodecs.resample import Resampler

Transcribe = Callable[[NDArray[np.float32]], str]
"""A function from English speech at 16 kHz to its words."""

FRAME_S = 0.02
FRAME = round(FRAME_S * RATE)
_PARTIAL_EVERY_S = 0.3
_FINAL_S = 0.2  # from a sound to the recogniser's words
_READ_S = 0.1  # from a pause to them: the embedded recogniser reads the utterance at once, which takes it half as long
_LOOK_S = 0.05  # of the turn model
_THREAD_S = 0.01  # of the uplink's thread: it gathers payloads


@dataclass(slots=True)
class Said:
    """Sound at the caller's telephone, from second ``at`` of the call."""

    at: float
    pcm: Pcm
    """At the level and with the room that the telephone hears."""
    text: str = ""
    by_caller: bool = True
    words: list[tuple[float, str]] = field(default_factory=list)
    """Each word with the second of the sound at which it has been said; made from ``text``."""

    @property
    def end(self) -> float:
        return self.at + len(self.pcm) / RATE

    def __post_init__(self) -> None:
        if self.text and not self.words:
            words, said, whole = self.text.split(), 0, max(1, len(self.text))
            for word in words:
                said += len(word) + 1
                self.words.append((min(1.0, said / whole) * len(self.pcm) / RATE, word))


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSettings:
    """The line and the telephone at its end."""

    format: AudioFormat = AudioFormat()
    delay_s: float = 0.08
    """From a frame's sending to its echo."""
    echo: Pcm | None = None
    """Response from the line to the microphone; None: the telephone returns nothing of the bot's voice."""
    noise_dbov: float = -66.0
    """Level of the line's own white noise."""
    lost: float = 0.0
    """Share of the caller's packets that do not arrive."""
    clipping: float = 0.0
    """Above 0: a loudspeaker that distorts, the samples' gain before ``tanh``."""


class Uplink(UplinkWorker):
    """The uplink, whose batches the loop's timer starts instead of the thread."""

    def __init__(self, routes: dict[str, RouteConfig], barge_in: BargeInConfig) -> None:
        self._batch: asyncio.TimerHandle | None = None
        super().__init__(routes, barge_in, clock=lambda: self._loop.time(), suppressing=suppressing_network(routes))

    def notify(self, stream: Stream) -> None:
        if id(stream) not in self._queued:
            self._queued.add(id(stream))
            self._ready.append(stream)
        if self._batch is None:
            self._batch = self._loop.call_later(_THREAD_S, self._run_batch)

    def _run_batch(self) -> None:
        self._batch = None
        posted: list[Callable[[], None]] = []
        self._work(posted.append)
        for act in posted:
            act()


class Utterance:
    """The bot's sound of one turn."""

    def __init__(self, world: Call) -> None:
        self._world = world
        self._text = ""
        self._ended = asyncio.Event()

    def feed(self, text: str) -> None:
        self._text += text

    def end_text(self) -> None:
        self._ended.set()

    def played(self, samples: int, *, at: float) -> None: ...

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        await self._ended.wait()
        line = self._world.line.format
        pcm = self._world.voice[self._text.strip()]
        if line.sample_rate != RATE:
            pcm = Resampler(RATE, line.sample_rate).process(pcm)
        whole = -(-len(pcm) // line.frame_samples) * line.frame_samples
        pcm = np.concatenate((pcm, np.zeros(whole - len(pcm), np.float32)))
        coder = encoder(line)
        frames = [coder.encode(part) for part in np.split(to_int16(pcm), whole // line.frame_samples)]
        spans, at, length = [], 0, max(1, len(self._text))
        for word in self._text.split():
            start = self._text.index(word, at)
            at = start + len(word)
            spans.append(TextSpan(start, at, whole * start // length, whole * at // length))
        yield AudioChunk(frames=frames, first_sample=0, samples=whole, spans=spans, stages_ms={"engine": 1.0})

    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Call(UnbufferedLeg):
    """One call. Its owner schedules what is ``said`` and reads what came of it.

    Args:
        voice: what the bot can say: its sound at ``RATE``, by the text.
        turn_model: such as Smart Turn, or None.
        route: keys of the route.
        recogniser: False: the route has none. True: the ideal one. A function: a recogniser from whole utterances to
            words, such as ``Moonshine``; it is asked as the embedded one is, and its time passes on the clock.
        seconds: longest call.
    """

    def __init__(
        self,
        line: LineSettings,
        voice: dict[str, Pcm],
        *,
        turn_model: Judge | None = None,
        route: dict[str, Any] | None = None,
        barge_in: dict[str, Any] | None = None,
        recogniser: bool | Transcribe = True,
        seconds: float = 120.0,
        seed: int = 0,
        direction: str = "inbound",
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self.settings, self.voice = line, voice
        self.rng = random.Random(seed)
        samples = round((seconds + 30) * RATE)
        self.said: list[Said] = []
        self._near = np.zeros(samples, np.float32)
        """All that sounds at the telephone, without the echo."""
        self._far = np.zeros(samples, np.float32)
        """The sound that was sent, placed at its sending times."""
        self._far_end = 0
        self._noise = np.random.default_rng(seed).standard_normal(samples).astype(np.float32) * np.float32(
            10 ** (line.noise_dbov / 20)
        )
        self._losses = random.Random(seed)
        self.sent_at: list[float] = []
        """Sending time of each frame, seconds of the call."""
        self.clears = 0
        """Number of times the bot fell silent for the caller."""
        self.told: list[tuple[float, Outbound]] = []
        """The manager's messages."""
        self.on_told: Callable[[Outbound], None] = lambda message: None
        self._hear, self._code = decoder(line.format), encoder(line.format)
        rate = line.format.sample_rate
        self._down = None if rate == RATE else Resampler(rate, RATE)
        self._up = None if rate == RATE else Resampler(RATE, rate)
        made = RouteConfig.model_validate({"recogniser": "external" if recogniser else "", **(route or {})})
        common = BargeInConfig.model_validate(barge_in or {})
        self.recogniser = _Recogniser(self, recogniser if callable(recogniser) else None)
        model = None if turn_model is None else _TurnModel(self._loop, turn_model)
        heard = hearing(made, self.recogniser, RecogniserConfig(), common, model) if recogniser else None
        playout = PlayoutConfig(lead_ms=0)
        self.ticker = VirtualTicker()
        self.uplink = Uplink({"r": made}, common)
        second_legs = SecondLegs(_Manager(self))
        services = Services(
            engine=_Engine(self),  # type: ignore[arg-type]  # opens utterances, and no more
            ticker=self.ticker,
            dialogues=second_legs,
            second_legs=second_legs,
            clips=None,  # type: ignore[arg-type]  # no clip is played
            meter=_Meter(),
            playout=playout,
            start=StartPolicy(quantile=1.0, max_delay_s=0.0),
            calling=CallingPolicy(CallingConfig(), {"r": made}),
            uplink=self.uplink,
            hearing={"r": heard} if heard else {},
        )
        limits = turn_defaults(
            made, DialogueConfig(extensions=True), playout, common, turn_chars=4000, turns_queued=20, hearing=heard
        )
        call = CallInfo(call_id="VX1", route="r", transport="test", direction=direction)
        self.session = Session(call, self, line.format, made, limits, services)
        self._tasks = [asyncio.create_task(self.session.run()), asyncio.create_task(self._listen())]

    @property
    def line(self) -> LineSettings:
        return self.settings

    @property
    def now(self) -> float:
        """Seconds of the call."""
        return self._loop.time() - self._begun

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        self._loop.call_later(max(0.0, seconds), act)

    def say(self, *messages: Inbound) -> None:
        """The manager's messages."""
        for message in messages:
            self.session.on_message(message)

    def speak(self, text: str, turn: str, expect: ExpectedReply | None = None) -> None:
        """The bot says a text that it has a sound for, and the manager says what it expects to be answered."""
        self.say(Text(token=text, last=True, turn=turn, expect=expect))

    def utter(
        self,
        pcm: Pcm,
        text: str = "",
        *,
        words: Sequence[tuple[float, str]] = (),
        after_s: float = 0.0,
        by_caller: bool = True,
    ) -> Said:
        """Something is said at the telephone from now on, or later. ``words``: see ``Said``; made from the text if
        unknown."""
        said = Said(self.now + after_s, pcm, text, by_caller, list(words))
        self.said.append(said)
        self.sound(pcm, said.at)
        return said

    def sound(self, pcm: Pcm, at: float = 0.0) -> None:
        """Add sound at the telephone from second ``at`` of the call."""
        first = round(at * RATE)
        part = pcm[: max(0, len(self._near) - first)]
        self._near[first : first + len(part)] += part

    async def finish(self) -> None:
        """The caller hangs up."""
        self.session.on_leg_closed("hangup")
        await self._tasks[0]
        self._tasks[1].cancel()
        self.ticker.close()
        self.uplink.close()

    # --- the line ----------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        frames = 0
        while True:
            frames += 1
            await asyncio.sleep(self._begun + frames * FRAME_S - self._loop.time())
            if not self.session.listening:
                continue
            first = (frames - 1) * FRAME
            pcm = self._near[first : first + FRAME] + self._noise[first : first + FRAME] + self._echo(first)
            if self._up is not None:
                pcm = self._up.process(pcm.astype(np.float32))
            arrives = not self.settings.lost or self._losses.random() >= self.settings.lost
            payload = self._code.encode(to_int16(np.clip(pcm, -1, 1).astype(np.float32)))
            self.session.on_audio(payload if arrives else LOST)

    def _echo(self, first: int) -> Pcm:
        response = self.settings.echo
        if response is None:
            return np.zeros(FRAME, np.float32)
        end = first + FRAME - round(self.settings.delay_s * RATE)
        begin = end - FRAME - len(response) + 1
        if end <= 0 or self._far_end <= begin:
            return np.zeros(FRAME, np.float32)
        past = self._far[max(0, begin) : end]
        past = np.concatenate((np.zeros(FRAME + len(response) - 1 - len(past), np.float32), past))
        if not past.any():
            return np.zeros(FRAME, np.float32)
        if self.settings.clipping:
            past = np.tanh(past * self.settings.clipping) / self.settings.clipping
        size = 1 << (len(past) - 1).bit_length()
        both = np.fft.irfft(np.fft.rfft(past, size) * np.fft.rfft(response, size), size)
        return both[len(response) - 1 : len(response) - 1 + FRAME].astype(np.float32)

    @property
    def outbound(self) -> AudioFormat:
        return self.settings.format

    def reception(self) -> None:
        return None

    def send_frame(self, payload: bytes, now: float) -> bool:
        at = now - self._begun
        pcm = to_float32(self._hear.decode(payload))
        if self._down is not None:
            pcm = self._down.process(pcm)
        first = round(at * RATE)
        if abs(first - self._far_end) < FRAME:
            first = self._far_end
        part = pcm[: max(0, len(self._far) - first)]
        self._far[first : first + len(part)] = part
        self._far_end = first + len(part)
        self.sent_at.append(at)
        return True

    def send_clear(self) -> None:
        self.clears += 1

    def hang_up(self, reason: str, handoff_data: str | None = None) -> None: ...

    # --- the recogniser ----------------------------------------------------------------------------------------------

    def words(self, since: float, until: float, *, caller: bool | None = None) -> str:
        """Return the words that were said between two seconds of the call, by all or by one side."""
        found = [
            (said.at + at, word)
            for said in self.said
            if caller is None or said.by_caller is caller
            for at, word in said.words
            if since - 0.05 <= said.at + at <= until + 0.05
        ]
        return " ".join(word for _, word in sorted(found))

    def returns(self, since: float, until: float) -> bool:
        """Return True if the bot's voice came back in that time."""
        if self.settings.echo is None:
            return False
        first, last = (max(0, round((at - self.settings.delay_s) * RATE)) for at in (since, until))
        return bool(np.abs(self._far[first:last]).max(initial=0.0) > 0.01)


class _Meter:
    """Counts nothing."""

    def pacing_error(self, transport: str) -> Histogram:
        return Histogram()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **named: None


class _Manager:
    def __init__(self, world: Call) -> None:
        self._world = world

    async def attach(self, call: CallInfo, sink: DialogueSink, *, codec: str) -> _Manager:
        sink.on_dialogue_ready()
        return self

    def send(self, message: Outbound) -> None:
        self._world.told.append((self._world.now, message))
        if isinstance(message, Interrupt | Prompt | TurnEvent):
            self._world.later(0.0, lambda: self._world.on_told(message))

    def send_audio(self, pcm: bytes) -> None: ...

    async def aclose(self) -> None: ...


class _Engine:
    def __init__(self, world: Call) -> None:
        self._world = world

    def open(self, request: UtteranceRequest) -> Utterance:
        return Utterance(self._world)


class _Recogniser:
    dropped = 0
    ready = True

    def __init__(self, world: Call, transcribe: Transcribe | None) -> None:
        self._world = world
        self._transcribe = transcribe
        self.utterances: list[tuple[float, float, str, str]] = []
        """Begin and end in seconds of the call, the caller's words, everyone's words."""

    def knows(self, language: str) -> bool:
        return True

    def open(
        self, events: RecognitionEvents, *, language: str, hints: Sequence[str], partials: bool
    ) -> _Words | _Understood:
        if self._transcribe is not None:
            return _Understood(self._world, events, self._transcribe, partials=partials)
        return _Words(self._world, events, partials=partials)

    async def aclose(self) -> None: ...


class _Words:
    """The words in the sound of one utterance after the other. A pause is read at once, as by the embedded
    recogniser."""

    def __init__(self, world: Call, events: RecognitionEvents, *, partials: bool) -> None:
        self._world, self._events, self._partials = world, events, partials
        self._begun: float | None = None
        self._first_at = self._last_at = 0.0
        self.heard_language = ""
        self._told_at = 0.0
        self._early = True
        self._read: tuple[float, float] = (-1.0, 0.0)
        """Time of the last sound that is read ahead, and the time from which its words are known."""

    def want_partials(self, wanted: bool) -> None:
        self._early = wanted

    def push(self, pcm: bytes) -> None:
        world = self._world
        if self._begun is None:
            self._begun = self._first_at = self._told_at = world.now
        if world.now - self._first_at < 1e-6:
            self._begun -= FRAME_S  # the audio before the onset comes at once
        self._last_at = world.now
        if self._partials and self._early and world.now - self._told_at >= _PARTIAL_EVERY_S:
            self._told_at = world.now
            self._tell(world.words(self._begun, world.now - _FINAL_S), 0.0)

    def pause(self) -> None:
        if self._begun is None or self._last_at <= self._read[0]:
            return
        world, begun, last_at = self._world, self._begun, self._last_at
        self._read = last_at, world.now + _READ_S
        if self._partials:
            self._tell(world.words(begun, last_at), _READ_S)

    def _tell(self, text: str, after_s: float) -> None:
        begun = self._begun
        if text:
            self._world.later(after_s, lambda: self._events.on_partial(text) if self._begun == begun else None)

    def finish(self) -> None:
        world = self._world
        begun = self._last_at if self._begun is None else self._begun
        text = world.words(begun, self._last_at)
        own = world.words(begun, self._last_at, caller=True)
        if not text and world.returns(begun, self._last_at):
            text = "our own words"
        world.recogniser.utterances.append((begun, world.now, own, text))
        read, known_at = self._read
        self._begun = None
        wait_s = known_at - world.now if read == self._last_at else _FINAL_S
        world.later(wait_s, lambda: self._events.on_final(text))

    async def aclose(self) -> None: ...


class _Understood:
    """The words that a network understands, asked as ``ListenServer`` asks it."""

    def __init__(self, world: Call, events: RecognitionEvents, transcribe: Transcribe, *, partials: bool) -> None:
        self._world, self._events, self._transcribe, self._partials = world, events, transcribe, partials
        self._sound: list[bytes] = []
        self._heard = 0  # frames that the latest words cover
        self._text = ""
        self._free_at = 0.0
        self._early = True
        self.heard_language = ""

    def want_partials(self, wanted: bool) -> None:
        self._early = wanted

    def push(self, pcm: bytes) -> None:
        self._sound.append(pcm)
        if self._partials and self._early and (len(self._sound) - self._heard) * FRAME_S * 1000 >= PARTIAL_MS:
            self._hear(self._events.on_partial)

    def pause(self) -> None:
        self._hear(self._events.on_partial, even_if_known=True)

    def finish(self) -> None:
        self._hear(self._events.on_final)
        self._sound, self._heard, self._text = [], 0, ""

    def _hear(self, tell: Callable[[str], None], *, even_if_known: bool = False) -> None:
        before = self._text
        if len(self._sound) > self._heard:
            self._heard = len(self._sound)
            begun = time.thread_time()
            self._text = self._transcribe(to_float32(np.frombuffer(b"".join(self._sound), "<i2").astype(np.int16)))
            self._free_at = max(self._free_at, self._world.now) + time.thread_time() - begun
        if tell == self._events.on_final or (even_if_known and self._text) or self._text != before:
            text = self._text
            self._world.later(self._free_at - self._world.now, lambda: tell(text))

    async def aclose(self) -> None: ...


class _Look:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class _TurnModel:
    """Smart Turn, at once, whose answer comes as late as usual."""

    def __init__(self, loop: asyncio.AbstractEventLoop, judge: Judge) -> None:
        self._loop, self._judge = loop, judge
        self.dropped: Mapping[str, int] = {}

    def look(self, sound: Sequence[bytes], tell: Callable[[float], None]) -> _Look:
        look = _Look()
        answer = self._judge(to_float32(np.frombuffer(b"".join(sound[-400:]), "<i2")))
        self._loop.call_later(_LOOK_S, lambda: None if look.cancelled else tell(answer))
        return look
