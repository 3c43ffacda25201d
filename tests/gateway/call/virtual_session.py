"""A whole session on the virtual clock: ``Session`` and all it decides are the real ones, so are the ticker's timetable
and the VAD's decisions. The leg, the engine, the clips, the manager, the recogniser and the network of the VAD are
played here. What leaves the session is written down, line by line, with the time at which it left."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gateway.call.defaults import turn_defaults
from gateway.call.hearing.listening import hearing
from gateway.call.joined.second_legs import SecondLegs
from gateway.call.session import Services, Session
from gateway.calling.policy import CallingPolicy
from gateway.config import BargeInConfig, CallingConfig, DialogueConfig, PlayoutConfig, RecogniserConfig, RouteConfig
from gateway.errors import ClipError
from gateway.histogram import Histogram
from gateway.media.own_sound import OwnSound
from gateway.media.playout import StartPolicy
from gateway.media.ticker import SLOT_S, Ticker
from gateway.seams.call_record import CallRecord
from gateway.seams.dialogue import DialogueSink
from gateway.seams.leg import CallInfo, TransferStart
from gateway.seams.messages import AnsweredBy, Ended, Inbound, Outbound, RecordState
from gateway.seams.recogniser import RecognitionError, RecognitionEvents
from gateway.seams.uplink import UplinkEvents
from gateway.uplink.vad import WINDOW_S, SpeechDetector, Window
from tests.gateway.call.turn_taking.virtual_call import words
from tests.virtual_loop import BEGINS_S, VirtualLoop
from tts_engine.api import AudioChunk, TextSpan, UtteranceRequest
from tts_engine.errors import EngineError
from voicecodecs.registry import AudioFormat

FRAME = 160
WORD_FRAMES = 10


class VirtualTicker(Ticker):
    """The real timetable; the loop's timer instead of the kernel's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lateness = Histogram()
        self._max_sends = 50
        self._wheel = {}
        self._armed_slot = None
        self._due_since_s = 0.0
        self._in_tick = False
        self._timer: asyncio.TimerHandle | None = None
        self.readings = 0

    def now(self) -> float:
        self.readings += 1
        return self._loop.time()

    def _arm(self, slot: int | None) -> None:
        self._armed_slot = slot
        if self._timer is not None:
            self._timer.cancel()
        if slot is not None:
            self._timer = self._loop.call_at(slot * SLOT_S + 1e-6, lambda: self.on_timer(now=self.now()))

    def catch_up(self) -> None:
        """Nothing is ever late on this clock."""

    def close(self) -> None:
        self._arm(None)


class Spoken:
    """An utterance: a chunk of ten frames for each word, at the world's pace."""

    def __init__(self, world: VirtualSession, name: str, text: str = "", *, ended: bool = False) -> None:
        self._world = world
        self._name = name
        self.text = text
        self._ended = ended
        self._spoken = 0
        self._news = asyncio.Event()
        self.fault = False

    def feed(self, text: str) -> None:
        self._world.note(f"feed {self._name} {text!r}")
        self.text += text
        self._news.set()

    def end_text(self) -> None:
        self._world.note(f"end_text {self._name}")
        self._ended = True
        self._news.set()

    def played(self, samples: int, *, at: float) -> None:
        self._world.note(f"played {self._name} {samples}")

    def fail(self) -> None:
        self.fault = True
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        world = self._world
        while True:
            complete = words(self.text) if self._ended else words(self.text + "x")[:-1]
            if self.fault:
                raise EngineError("the engine broke")
            if self._spoken < len(complete):
                await asyncio.sleep(world.pace())
                start, end = complete[self._spoken]
                first = self._spoken * WORD_FRAMES * FRAME
                self._spoken += 1
                yield AudioChunk(
                    frames=[f"{self._name}/{self._spoken}".encode()] * WORD_FRAMES,
                    first_sample=first,
                    samples=WORD_FRAMES * FRAME,
                    spans=[TextSpan(start, end, first, first + WORD_FRAMES * FRAME - 200)],
                    stages_ms={"engine": 1.0},
                )
            elif self._ended:
                return
            else:
                await self._news.wait()
                self._news.clear()

    async def aclose(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._world.note(f"closed {self._name}")


def _window(kind: str) -> Window:
    probability, level, bright, front = {
        "word": (0.9, -20.0, -3.0, -10.0),
        "vowel": (0.9, -20.0, -12.0, -15.0),
        "hum": (0.8, -22.0, -16.0, -30.0),
        "far": (0.9, -45.0, -3.0, -10.0),
        "noise": (0.1, -30.0, -2.0, -4.0),
        "silence": (0.02, -65.0, -10.0, -20.0),
    }[kind]
    return Window(
        end=0.0, probability=probability, level_db=level, bright_db=bright, front_db=front, talking_over=False
    )


class VirtualSession:
    """One call. Its owner awaits ``run`` to let time pass; ``lines`` is what came of it.

    Args:
        seed: of everything that is drawn: the pace of the engine, what the recogniser hears, when it answers.
    """

    max_lead_ms: int
    has_marks: bool
    can_clear: bool
    in_real_time = True
    refuses_transfers = False
    asks_webhook = False
    outbound = AudioFormat()

    def __init__(
        self,
        route: dict[str, Any],
        *,
        recogniser: bool = False,
        greets: bool = True,
        barge_in: dict[str, Any] | None = None,
        dialogue: dict[str, Any] | None = None,
        calling: dict[str, Any] | None = None,
        direction: str = "inbound",
        lead_ms: int = 0,
        has_marks: bool = False,
        can_clear: bool = True,
        logged: bool = False,
        seed: int = 0,
    ) -> None:
        self.lines: list[str] = []
        self.asked: list[UtteranceRequest] = []
        self.max_lead_ms, self.has_marks, self.can_clear = lead_ms, has_marks, can_clear
        self.rng = random.Random(seed)
        self._loop = asyncio.get_running_loop()
        assert isinstance(self._loop, VirtualLoop)
        self._loop.now = BEGINS_S
        self.spoken: list[Spoken] = []
        self.transfers_are = TransferStart.REFUSED
        self.says = ["", "Mm-hmm.", "Yeah.", "Stop it.", "Yeah but no."]
        """The texts that the recogniser may hear; ``answer_s`` is its longest time to answer."""
        self.answer_s = 0.3
        self.partials = 0.02
        """For each 20 ms of speech: how likely the recogniser says what it has so far."""
        self.engine_s = 0.0
        """The longest that the engine takes for a word."""
        self.loses_marks = False
        self.notes_cause = True
        self.speech_wanted = self.vad_wanted = False
        self.plan: deque[Window] = deque()
        """The caller's coming windows, 32 ms each; windows of silence are skipped while no one has spoken."""
        self._marks: deque[asyncio.TimerHandle] = deque()
        self._asked = 0
        self._last_frame_at = 0.0
        self.recorded: list[tuple[float, float]] = []
        """The recorded frames of our side: start and length of each, seconds."""
        made = RouteConfig.model_validate({"recogniser": "external" if recogniser else "", **route})
        common = BargeInConfig.model_validate(barge_in or {})
        heard = hearing(made, _Recogniser(self), RecogniserConfig(), common) if recogniser else None
        playout = PlayoutConfig(lead_ms=lead_ms, fade_ms=0, mark_timeout_s=1.0, held_turns=2)
        self.ticker = VirtualTicker()
        self.second_legs = SecondLegs(_Manager(self))
        services = Services(
            engine=_Engine(self),  # type: ignore[arg-type]  # opens utterances, and no more
            ticker=self.ticker,
            dialogues=self.second_legs,
            second_legs=self.second_legs,
            clips=_Clips(self),
            meter=self,
            playout=playout,
            start=StartPolicy(quantile=1.0, max_delay_s=0.0),
            calling=CallingPolicy(CallingConfig.model_validate(calling or {}), {"r": made}),
            uplink=_Uplink(self),
            hearing={"r": heard} if heard else {},
            call_log=_Log() if logged else None,
        )
        limits = turn_defaults(
            made,
            DialogueConfig.model_validate(dialogue or {}),
            playout,
            common,
            turn_chars=60,
            turns_queued=6,
            hearing=heard,
        )
        self.detector = SpeechDetector(
            pause_s=common.pause_ms / 1000,
            max_hum_s=common.max_hum_ms / 1000,
        )
        for _ in range(70):  # two seconds of a quiet room: what is loud is known by it
            self.detector.feed(_window("silence"))
        call = CallInfo(call_id="VX1", route="r", transport="test", greets=greets, direction=direction)
        self.session = Session(call, self, AudioFormat(), made, limits, services)
        self._running = asyncio.create_task(self.session.run())
        self._listening = asyncio.create_task(self._listen())

    def note(self, line: str) -> None:
        """Write down what happened now."""
        self.lines.append(f"{self._loop.time() - BEGINS_S:.3f} {line}")

    @property
    def now(self) -> float:
        return self._loop.time()

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        self._loop.call_later(seconds, act)

    def begins(self, name: str, text: str = "") -> Spoken:
        """A turn's sound is asked for; with ``text`` it is all there."""
        self.spoken.append(Spoken(self, name, text, ended=bool(text)))
        return self.spoken[-1]

    def pace(self) -> float:
        return self.rng.random() * self.engine_s

    async def run(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)

    async def finish(self) -> list[str]:
        """The caller hangs up."""
        self.session.on_leg_closed("hangup")
        await self._running
        self._listening.cancel()
        self.ticker.close()
        stats = self.session.stats
        self.note(
            f"stats turns={stats.turns} gaps={stats.gaps} first={stats.first_packet_ms} stalls={stats.stalls} "
            f"cut={None if stats.last_cut_ms is None else round(stats.last_cut_ms)} "
            f"last={stats.last_turn}/{stats.last_heard}/{stats.last_outcome}"
        )
        return self.lines

    def say(self, *messages: Inbound) -> None:
        """The manager's messages."""
        for message in messages:
            self.session.on_message(message)

    # --- the caller --------------------------------------------------------------------------------------------------

    def utters(self, kind: str, windows: int) -> None:
        """The caller is heard for so many windows more."""
        self.plan.extend(_window(kind) for _ in range(windows))

    def goes_deaf(self) -> None:
        """No more audio came for a second: the worker forgets who was speaking."""
        self.plan.clear()
        self.detector.forget()

    async def _listen(self) -> None:
        events: UplinkEvents = self.session.caller
        while True:
            await asyncio.sleep(WINDOW_S)
            if not self.plan and self.detector.idle:
                continue
            planned = self.plan.popleft() if self.plan else _window("silence")
            now = self._loop.time()
            window = replace(planned, end=now, talking_over=now - WINDOW_S < self._last_frame_at + 0.6)
            heard = self.detector.feed(window, is_echo=lambda: self.rng.random() < 0.1)
            if self.detector.speaking and self.speech_wanted:
                events.on_speech(bytes(640))
            short_from = self.detector.short_sound_from
            if short_from is not None and self.speech_wanted:
                events.on_short_sound(onset=short_from, sound=[bytes(640)] * 10)
            match heard:
                case ("suspected", onset):
                    events.on_speech_suspected(onset=onset)
                case ("dismissed", _):
                    events.on_speech_dismissed()
                case ("started", onset):
                    events.on_speech_started(onset=onset)
                case ("ended", _):
                    events.on_speech_ended()

    # --- the leg -----------------------------------------------------------------------------------------------------

    def reception(self) -> None:
        return None

    def send_frame(self, payload: bytes, now: float) -> bool:
        self._last_frame_at = self._loop.time()
        self.note(f"frame {payload.decode()}")
        return True

    def send_mark(self, name: str) -> None:
        self.note("mark")
        if not self.loses_marks:
            self._asked += 1
            later = self.max_lead_ms / 1000 + 0.03 + self._asked * 1e-7  # no two at once: their order would be chance
            self._marks.append(self._loop.call_later(later, self.session.on_mark, name))

    def send_clear(self) -> None:
        self.note("clear")
        while self._marks:
            self._marks.popleft().cancel()

    def carries_dtmf(self, digits: str) -> bool:
        return digits == "beside"

    def send_dtmf(self, digits: str) -> bool:
        self.note(f"dtmf {digits}")
        return True

    def hang_up(self, reason: str, handoff_data: str | None = None) -> None:
        self.note(f"hang_up {reason} {handoff_data}")

    def transfer(self, target: str, handoff_data: str | None = None, *, reason: str = "transferred") -> TransferStart:
        self.note(f"{reason} {target}" if reason != "transferred" else f"transfer {target}")
        return self.transfers_are

    # --- meter -------------------------------------------------------------------------------------------------------

    def pacing_error(self, transport: str) -> Histogram:
        return Histogram()

    def first_packet(self, *, transport: str, engine: str, seconds: float, stages_ms: dict[str, float]) -> None:
        self.note(f"first packet {seconds:.3f} {sorted(stages_ms)}")

    def playout_buffer(self, *, seconds: float) -> None:
        pass

    def gap(self, *, transport: str, seconds: float) -> None:
        self.note(f"gap {seconds:.3f}")

    def turn_ended(self, *, outcome: str) -> None:
        self.note(f"turn ended {outcome}")

    def dialogue_failed(self, *, route: str) -> None:
        self.note("dialogue failed")

    def call_rejected(self, reason: str) -> None:
        self.note(f"call rejected {reason}")

    def cut(self, *, reason: str, seconds: float) -> None:
        self.note(f"cut {reason} {seconds:.3f}")

    def mark_delay(self, *, seconds: float) -> None:
        self.note(f"mark delay {seconds:.3f}")

    def tokens_dropped(self, count: int) -> None:
        self.note(f"dropped {count}")

    def sound_refused(self, seconds: float) -> None:
        self.note(f"refused {seconds:.2f} s of sound")

    def stalled(self, *, transport: str) -> None:
        self.note("stalled")

    def bridge_leg(self, event: str) -> None:
        self.note(f"leg {event}")

    def answered(self, by: AnsweredBy) -> None:
        self.note(f"answered by {by}")

    def beep(self) -> None:
        self.note("beep")

    def listener_joined(self) -> None:
        self.note("listener")

    def listener_dropped(self, count: int) -> None:
        self.note(f"listener dropped {count}")


class _Log:
    """A call log that keeps nothing: the session's journal is read from the session."""

    keeps_text = True

    def add(self, record: CallRecord) -> None:
        pass


class _Manager:
    """The dialogue manager's line."""

    def __init__(self, world: VirtualSession) -> None:
        self._world = world

    async def attach(self, call: CallInfo, sink: DialogueSink, *, codec: str) -> _Manager:
        sink.on_dialogue_ready()
        return self

    def send(self, message: Outbound) -> None:
        self._world.note(f"tell {message}")
        if isinstance(message, Ended) and self._world.notes_cause:
            cause = message.cause  # which the message does not show in logs
            codes = [str(code) for code in (cause.sip_status, cause.q850, cause.text) if code]
            self._world.note(f"ended by {' '.join([str(cause.by), *codes])}")

    def send_audio(self, pcm: bytes) -> None:
        self._world.note("audio to the manager")

    async def aclose(self) -> None:
        self._world.note("line closed")


class _Engine:
    def __init__(self, world: VirtualSession) -> None:
        self._world = world

    def open(self, request: UtteranceRequest) -> Spoken:
        self._world.asked.append(request)
        name = request.utterance_id.partition(".")[2]
        self._world.note(f"engine {name} ahead={request.ahead} language={request.language} speed={request.speed}")
        return self._world.begins(name)


class _Clips:
    def __init__(self, world: VirtualSession) -> None:
        self._world = world

    async def open(self, source: str, fmt: AudioFormat, loop: int, *, route: str = "", call_id: str = "") -> Spoken:
        self._world.note(f"clip {source} {loop}")
        if source == "missing":
            raise ClipError("missing")
        return self._world.begins(source, "la la la")

    def own_sound(
        self,
        sound: OwnSound,
        fmt: AudioFormat,
        *,
        buffered_s: Callable[[], float],
        complete: Callable[[], None],
        route: str = "",
        call_id: str = "",
    ) -> Spoken:
        self._world.note(f"own sound at {sound.sample_rate} Hz")
        complete()
        return self._world.begins("own", "")

    async def samples(self, source: str, *, route: str = "", call_id: str = "") -> tuple[NDArray[np.int16], int]:
        if source == "missing":
            raise ClipError("missing")
        return np.full(8000, 1000, np.int16), 8000

    async def digits(self, digits: str, fmt: AudioFormat, *, silent: bool = False) -> Spoken:
        self._world.note(f"tones {digits} {silent}")
        return self._world.begins("tones", digits)

    async def aclose(self) -> None: ...


class _Uplink:
    """The worker, and a call's stream to it."""

    needed = True
    rate = 8000

    def __init__(self, world: VirtualSession) -> None:
        self._world = world

    def open(self, *_: object) -> _Uplink:
        return self

    def want(
        self, *, vad: bool, pcm_rate: int, dtmf: bool = False, speech: bool = False, lulls: bool = False,
        tones: bool = False,
    ) -> None:  # fmt: skip
        self._world.speech_wanted, self._world.vad_wanted = speech, vad

    @property
    def heard_s(self) -> float:
        return self._world.now

    def be_sensitive(self, sensitivity: str) -> None:
        self._world.note(f"sensitivity {sensitivity}")

    def reduce_noise(self, wanted: bool) -> bool:
        self._world.note(f"noise reduced {wanted}")
        return True

    def end_speech(self) -> None: ...

    def spoke(self, frame: bytes, now: float, heard_at: float) -> None:
        self._world.recorded.append((heard_at, 0.02))

    def unheard(self, seconds: float) -> None:
        recorded = self._world.recorded
        while seconds > 1e-9:
            at, length_s = recorded.pop()
            if length_s > seconds:
                recorded.append((at, length_s - seconds))
            seconds -= length_s

    def pressed(self, *, now: float) -> None: ...

    def record(self, state: RecordState, *, now: float) -> bool:
        return False

    def listen(self, wanted: bool) -> None: ...

    def push(self, payload: bytes, *, now: float) -> None: ...

    def close(self) -> None: ...


class _Recogniser:
    dropped = 0
    ready = True

    def __init__(self, world: VirtualSession) -> None:
        self._world = world

    def knows(self, language: str) -> bool:
        return language != "xx"

    def open(self, events: RecognitionEvents, *, language: str, hints: Sequence[str], partials: bool) -> _Words:
        if language == "xx":
            raise RecognitionError("xx is not spoken here")
        self._world.note(f"recogniser {language} partials={partials}")
        return _Words(self._world, events)

    async def aclose(self) -> None: ...


class _Words:
    """A stream of the recogniser: hears what is drawn."""

    def __init__(self, world: VirtualSession, events: RecognitionEvents) -> None:
        self._world = world
        self._events = events
        self._answers = 0.0
        self.heard_language = ""

    def push(self, pcm: bytes) -> None:
        world = self._world
        if world.rng.random() < world.partials:
            world.later(0.0, lambda: self._events.on_partial(world.rng.choice(world.says)))

    def pause(self) -> None: ...

    def want_partials(self, wanted: bool) -> None: ...

    def finish(self) -> None:
        world = self._world
        self._answers = max(self._answers, world.now) + world.rng.random() * world.answer_s
        said = world.rng.choice(world.says)
        world.later(self._answers - world.now, lambda: self._events.on_final(said))

    async def aclose(self) -> None: ...
