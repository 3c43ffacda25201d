"""One call: carries out what ``Turns`` decides. Owns every task of the call and ends them.

Media comes from a leg (WebSocket, WebRTC, SIP), sound from the speech engine or a clip, words from the dialogue
manager; the ticker sends. Nothing here waits inside a tick.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.call.barge_in import Event, Policy, Rules
from gateway.call.barge_in import State as CallerState
from gateway.call.handoff import Handoff
from gateway.call.listening import Hearing, Listening
from gateway.call.turns import FirstPacket, Reason, State, Turn, TurnDefaults, Turns
from gateway.config import BargeInConfig, DialogueConfig, PlayoutConfig, RouteConfig
from gateway.errors import ClipError
from gateway.histogram import Histogram
from gateway.media.playout import Playout, StartPolicy
from gateway.media.ticker import Ticker
from gateway.seams.dialogue import DialogueLink, Dialogues
from gateway.seams.leg import CallInfo, MediaLeg
from gateway.seams.messages import (
    End,
    Ended,
    Error,
    Inbound,
    Info,
    Interruptible,
    Language,
    Outbound,
    Subscribe,
    Transfer,
)
from gateway.seams.recogniser import RecognitionError
from gateway.seams.uplink import Uplink, UplinkStream
from tts_engine.api import SpeechEngine, Utterance, UtteranceRequest
from tts_engine.errors import EngineError
from voicecodecs.fade import faded
from voicecodecs.registry import AudioFormat

log = logging.getLogger(__name__)


class Meter(Protocol):
    """What a session counts. ``gateway.metrics`` implements it."""

    def pacing_error(self, transport: str) -> Histogram: ...
    def first_packet(self, *, transport: str, engine: str, seconds: float, stages_ms: dict[str, float]) -> None: ...
    def playout_buffer(self, *, seconds: float) -> None: ...
    def gap(self, *, transport: str, seconds: float) -> None: ...
    def turn_ended(self, *, outcome: str) -> None: ...
    def cut(self, *, reason: str, seconds: float) -> None: ...
    def mark_delay(self, *, seconds: float) -> None: ...
    def tokens_dropped(self, count: int) -> None: ...
    def stalled(self, *, transport: str) -> None: ...


class Clips(Protocol):
    """Sound that is not synthesised: files and tones, as utterances."""

    async def open(self, source: str, fmt: AudioFormat, loop: int) -> Utterance:
        """Raises ``ClipError``."""
        ...

    async def digits(self, digits: str, fmt: AudioFormat, *, silent: bool = False) -> Utterance: ...

    async def aclose(self) -> None: ...


@dataclass(kw_only=True)
class Services:
    """What all calls of a process share."""

    engine: SpeechEngine
    ticker: Ticker
    dialogues: Dialogues
    clips: Clips
    meter: Meter
    playout: PlayoutConfig
    start: StartPolicy
    uplink: Uplink | None = None
    hearing: Mapping[str, Hearing] = field(default_factory=dict)
    """By the name of the route; a route that is missing has no recogniser."""


@dataclass(slots=True)
class CallStats:
    """What REST and the console show of a call."""

    started_at: float
    turns: int = 0
    gaps: int = 0
    gap_s: float = 0.0
    first_packet_ms: list[float] = field(default_factory=list)
    last_cut_ms: float | None = None
    stalls: int = 0
    last_turn: str = ""
    """The turn that was heard last and is over, what the caller heard of it, and how it ended."""
    last_heard: str = ""
    last_outcome: str = ""


@dataclass(frozen=True, slots=True)
class SpokenText:
    """Where a call is in its text. The strings are bounded by ``SPOKEN_CHARS`` each."""

    turn: str
    """The turn that is being heard, else the last one that was."""
    played: str
    """What the caller has heard of it, the word under way included."""
    queued: str
    """What is to come: the rest of it, and the turns behind it, one a line."""
    outcome: str
    """How that turn ended: ``finished``, ``interrupted``, ``failed``; empty while it is being heard."""


SPOKEN_CHARS = 500


@dataclass(slots=True)
class _Making:
    """A turn's sound in the making."""

    task: asyncio.Task[None]
    utterance: Utterance | None = None
    pending: list[str] = field(default_factory=list)
    ended: bool = False
    engine: str = ""
    """What makes the sound, as its chunks say."""


def interruptible_word(value: Interruptible | bool) -> Interruptible:
    """ConversationRelay's two spellings as one."""
    return ("any" if value else "none") if isinstance(value, bool) else value


class Session:
    """One call from setup to ``ended``. ``run`` returns when the call is over and everything of it is cleaned up."""

    _POSITION_EVERY_S = 0.2

    def __init__(
        self,
        call: CallInfo,
        leg: MediaLeg,
        inbound: AudioFormat,
        route: RouteConfig,
        limits: TurnDefaults,
        services: Services,
    ) -> None:
        self.call = call
        self.stats = CallStats(started_at=time.time())
        self.inbound = inbound
        self._leg = leg
        self._route = route
        self._services = services
        self._now = services.ticker.now
        self._begun = self._now()
        self._link: DialogueLink | None = None
        self._early: list[Outbound] = []
        self._making: dict[str, _Making] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the dialogue manager has its ``setup``: a leg that rings until then may answer."""
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the first turn has ended, however it did: a leg that speaks before its answer may answer."""
        self._reason = ""
        self._hang_up_leg = False
        self._handoff_data: str | None = None
        self.handoff: Handoff | None = None
        """What the call leaves for the webhook that follows it."""
        self._room = asyncio.Event()
        self._room.set()
        self._next_position = 0.0
        self._next_words = 0.0
        self._flushed_at = 0.0
        self._decision: asyncio.TimerHandle | None = None
        self._decision_due: float | None = None
        self._subscribed_rate = 0
        self._beside: set[str] = set()
        """Turns of digits that the leg carries itself when their place in the audio comes."""
        fmt = leg.outbound
        self.playout = Playout(
            ptime_s=fmt.ptime_ms / 1000,
            lead_s=min(leg.max_lead_ms, services.playout.lead_ms) / 1000,
            start=services.start,
            has_marks=leg.has_marks,
            recalls=leg.recalls,
            mark_timeout_s=services.playout.mark_timeout_s,
            send_mark=leg.send_mark,
        )
        self.turns = Turns(limits, self.playout, self, sample_rate=fmt.sample_rate, frame_samples=fmt.frame_samples)
        self._handle = services.ticker.add(
            self.playout,
            self._send_frame,
            self._after_visit,
            pacing_error=services.meter.pacing_error(call.transport),
        )
        self._uplink: UplinkStream | None = None
        heard = services.hearing.get(call.route)
        self._listening = Listening(heard, self.turns, tell=self.tell, decide=self._decide) if heard else None
        self._keys_told = False
        self.wants_round_trip = "debugging" in route.events
        """Whether ``on_round_trip`` is of use; a leg that would have to measure it for this alone may ask."""
        self._transfer: Transfer | None = None
        self.listening = False
        """Whether anybody wants the caller's audio now; read for every frame that comes."""
        if services.uplink is not None:
            self._uplink = services.uplink.open(call.call_id, inbound, fmt, call.route, self)

    @property
    def call_id(self) -> str:
        """``VX`` + 32 hex."""
        return self.call.call_id

    # --- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> str:
        """Lead the call to its end; returns the reason."""
        try:
            self._link = await self._services.dialogues.attach(
                self.call, self, codec=f"{self._leg.outbound.encoding}/{self._leg.outbound.sample_rate}"
            )
            for message in self._early:
                self._link.send(message)
            self._early.clear()
            if self._route.welcome_greeting and not self._over.is_set():
                self.turns.greet(
                    self._route.welcome_greeting,
                    interruptible_word(self._route.welcome_greeting_interruptible),
                    self._now(),
                )
            if self._listening is not None:
                self._listening.start()
            self._want()
            await self._over.wait()
        except BaseException:
            self._hang_up_leg = True  # nobody leads the call any more
            raise
        finally:
            await self._finish()
        return self._reason

    async def _finish(self) -> None:
        now = self._now()
        closing: Reason = "ended" if self._hang_up_leg else "hangup"
        self.turns.close(closing, now)
        if self._decision is not None:
            self._decision.cancel()
        for making in self._making.values():
            making.task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._services.ticker.remove(self._handle)
        if self._uplink is not None:
            self._uplink.close()
        if self._listening is not None:
            await self._listening.aclose()
        self.tell(Ended(reason=self._reason, duration_ms=round((now - self._begun) * 1000)))
        if self._link is not None:
            await self._link.aclose()
        if self._hang_up_leg:
            self._leg.hang_up(self._reason, self._handoff_data)

    def end(self, reason: str, *, hang_up: bool, handoff_data: str | None = None) -> None:
        """End the call; ``hang_up`` closes the leg too. Idempotent: the first reason stays."""
        if not self._over.is_set():
            self._reason = reason
            self._hang_up_leg = hang_up
            self._handoff_data = handoff_data
            self._over.set()

    # --- the media leg's side (CallEvents) -------------------------------------------------------------------------

    def on_digit(self, digit: str) -> None:
        """The caller pressed a key, and the leg says so."""
        if not self._keys_told:
            self._keys_told = True  # its tone may be in the audio too, and is the same key
            self._want()
        self._key(digit)

    def _key(self, digit: str) -> None:
        self.turns.on_digit(digit, self._now())

    def on_audio(self, payload: bytes) -> None:
        """The caller's audio, only while ``listening``."""
        if self._uplink is not None:
            self._uplink.push(payload, now=self._now())

    def on_mark(self, name: str) -> None:
        """The peer has played up to a mark of ours."""
        now = self._now()
        self.playout.mark_reached(name, now)
        if self.playout.last_mark_delay_s is not None:
            self._services.meter.mark_delay(seconds=max(0.0, self.playout.last_mark_delay_s))
            self.playout.last_mark_delay_s = None
        self._after_visit(now)

    def on_round_trip(self, seconds: float) -> None:
        """The way to the caller and back takes so long now."""
        if self.wants_round_trip:
            self.tell(Info(name="roundTripDelayMs", value=str(round(seconds * 1000))))

    def on_hold(self, on_hold: bool) -> None:
        """The leg can carry no sound now (not answered yet, or put on hold), or can again.

        Speech waits where it is, and what is new behind it; nothing of that counts as heard. It goes on at its place.
        """
        if on_hold != self.playout.on_hold:
            now = self._now()
            self.playout.on_hold = on_hold
            if on_hold:
                self.playout.flushed(now)
            self.wake()

    def on_transferred(self, problem: str) -> None:
        """A transfer that was under way has ended; ``problem``: it failed, and the call goes on."""
        message, self._transfer = self._transfer, None
        if message is None:
            return
        if problem:
            self.tell(Error(description=f"transfer: {problem}", code="transfer_failed", field="target"))
        else:
            self._transferred(message)

    def on_playback(self, *, started: bool) -> None:
        """The peer has begun to play after silence, or has played all that it got."""
        now = self._now()
        if started:
            self.playout.playback_started(now)
        else:
            self.playout.playback_completed(now)
            self._after_visit(now)

    def on_leg_closed(self, reason: str) -> None:
        """The caller is gone."""
        self.end(reason, hang_up=False)

    # --- the caller's audio (UplinkEvents) -------------------------------------------------------------------------

    def on_speech_suspected(self, *, onset: float) -> None:
        """It may be speech."""
        self._decide(Event.SUSPECTED, onset)

    def on_speech_dismissed(self) -> None:
        """It was no speech."""
        self._decide(Event.DISMISSED)

    def on_speech_started(self, *, onset: float) -> None:
        """The VAD is sure."""
        if self._listening is not None:
            self._listening.on_speech_started(onset=onset)
            return
        if "speaker-events" in self._route.events:
            self.tell(Info(name="clientSpeaking", value="on"))
        self._decide(Event.SPEECH, onset)

    def _decide(self, event: Event, onset: float | None = None) -> None:
        """Something is known of the caller: let it have its consequence, and come back when the next one is due."""
        self.turns.on_caller(event, self._now(), onset=onset)
        self._want()

    def _arm(self) -> None:
        """Come back when a decision about the caller is due."""
        due = self.turns.deadline()
        if due != self._decision_due:
            self._decision_due = due
            if self._decision is not None:
                self._decision.cancel()
            if due is not None:
                delay_s = max(0.0, due - self._now())
                self._decision = asyncio.get_running_loop().call_later(delay_s, self._on_decision_due)

    def _on_decision_due(self) -> None:
        self._decision_due = None
        self._decide(Event.DEADLINE)

    def on_speech_ended(self) -> None:
        """The caller has stopped."""
        if self._listening is not None:
            self._listening.on_speech_ended()
            return
        self._decide(Event.SILENCE)
        if "speaker-events" in self._route.events:
            self.tell(Info(name="clientSpeaking", value="off"))

    def on_speech(self, pcm: bytes) -> None:
        """What the caller says."""
        if self._listening is not None:
            self._listening.on_speech(pcm)

    def on_key_heard(self, digit: str) -> None:
        """A touch tone in the audio, where the route looks for them and the leg has told none."""
        if not self._keys_told:
            self._key(digit)

    def on_pcm(self, pcm: bytes) -> None:
        """Audio for the dialogue manager that subscribed."""
        if self._link is not None and self._subscribed_rate:
            self._link.send_audio(pcm)

    def _want(self) -> None:
        if self._uplink is not None:
            speech = self._listening is not None
            vad = (
                speech
                or self.turns.interruptible_by("speech")
                or self.turns.barge_in.state is not CallerState.SILENT  # when will the caller have finished?
                or "speaker-events" in self._route.events
            )
            self._uplink.want(
                vad=vad,
                pcm_rate=self._subscribed_rate,
                keys=self._route.inband_dtmf and not self._keys_told,
                speech=speech,
            )
            self.listening = self._uplink.needed

    # --- the dialogue manager's side (DialogueSink) ----------------------------------------------------------------

    def on_message(self, message: Inbound) -> None:
        """A decoded message of the dialogue manager."""
        now = self._now()
        match message:
            case Subscribe():
                self._subscribed_rate = message.sample_rate if message.media else 0
                self._want()
            case Transfer():
                if self._transfer is not None:
                    self.tell(Error(description="transfer: one is under way", code="transfer_failed", field="type"))
                    return
                started = self._leg.transfer(message.target, message.handoff_data)
                if started is None:
                    self._transfer = message
                elif started:
                    self._transferred(message)
                else:
                    self.tell(
                        Error(
                            description=f"transfer: a {self.call.transport} call cannot be transferred from here",
                            code="not_supported",
                            field="type",
                        )
                    )
            case _:
                if isinstance(message, Language):
                    self._transcribe(message.transcription_language)
                self.turns.on_message(message, now)

    def _transcribe(self, language: str) -> None:
        if self._listening is not None and language:
            try:
                self._listening.use_language(language)
            except RecognitionError as exc:
                self.tell(Error(description=str(exc), code="not_supported", field="transcriptionLanguage"))

    def _transferred(self, message: Transfer) -> None:
        self._leave("transferred", message.handoff_data, transfer_target=message.target)
        self.end("transferred", hang_up=True, handoff_data=message.handoff_data)

    def on_dialogue_ready(self) -> None:
        """The manager has its ``setup``."""
        if not self.ready.done():
            self.ready.set_result(None)

    def on_dialogue_closed(self) -> None:
        """The manager hung up on purpose: the same as ``end``."""
        self.turns.on_message(End(), self._now())

    def on_dialogue_lost(self) -> None:
        """The manager's line broke."""
        self.turns.on_dialogue_lost(self._route.fallback, self._now())

    def on_dialogue_resumed(self) -> None:
        """The manager is back."""

    def on_dialogue_failed(self, description: str) -> None:
        """There is no manager for this call."""
        log.warning("dialogue manager lost", extra={"call": self.call_id, "why": description})
        self.end("dialogue_failed", hang_up=True)

    # --- what Turns wants done (Effects) ---------------------------------------------------------------------------

    def tell(self, message: Outbound) -> None:
        """Send to the manager."""
        if self._link is None:
            self._early.append(message)
        else:
            self._link.send(message)

    def open(self, turn: Turn) -> None:
        """Start making a turn's sound."""
        self.stats.turns += 1
        making = _Making(asyncio.create_task(self._make(turn), name=f"turn {turn.id}"))
        if turn.kind == "text":
            making.pending.append(turn.text)
        making.ended = turn.closed
        self._making[turn.id] = making
        self._tasks.add(making.task)
        making.task.add_done_callback(self._tasks.discard)

    def feed(self, turn: Turn, text: str) -> None:
        """More text of a turn in the making."""
        making = self._making.get(turn.id)
        if making is not None:
            if making.utterance is None:
                making.pending.append(text)
            else:
                making.utterance.feed(text)

    def end_text(self, turn: Turn) -> None:
        """A turn's text is complete."""
        making = self._making.get(turn.id)
        if making is not None:
            making.ended = True
            if making.utterance is not None:
                making.utterance.end_text()

    def stop(self, turn: Turn) -> None:
        """Abort a turn's work."""
        making = self._making.pop(turn.id, None)
        if making is not None:
            if making.utterance is not None:
                heard = self.turns.heard_samples(turn, self._now())
                making.utterance.played(heard, at=self._now())
            making.task.cancel()

    def flush(self, since: float | None) -> None:
        """Silence now: empty the peer's buffer, then the shortest fade the codec allows."""
        now = self._now()
        sounding = self.playout.flushed(now)
        self._leg.send_clear()
        # The tail is as long as a frame: a large one would hold the next turn up for longer than the click is worth.
        if sounding is not None and self._services.playout.fade_ms and self._leg.outbound.ptime_ms <= 60:
            tail = faded(self._leg.outbound, sounding, ms=self._services.playout.fade_ms)
            if tail is not None:
                self._leg.send_frame(tail, now)
        if since is not None:
            self._flushed_at = self._now()
            self.stats.last_cut_ms = (self._flushed_at - since) * 1000

    def wake(self) -> None:
        """Look at the playout again in the next slot."""
        self._services.ticker.wake(self._handle, now=self._now())
        self._arm()

    def hang_up(self, handoff_data: str | None) -> None:
        """The manager ended the session and all is said."""
        self._leave("ended", handoff_data)
        self.end("end", hang_up=True, handoff_data=handoff_data)

    def _leave(self, reason: str, handoff_data: str | None, *, transfer_target: str = "") -> None:
        self.handoff = Handoff(self.call_id, reason, handoff_data, transfer_target)

    def first_packet(self, measured: FirstPacket) -> None:
        """Count a first packet, tell the engine where the phone is; digits go out beside the audio here."""
        if measured.turn.id in self._beside:
            self._beside.discard(measured.turn.id)
            self._leg.send_dtmf(measured.turn.text)
        if not measured.follows:
            self.stats.first_packet_ms.append(round(measured.total_s * 1000, 1))
            del self.stats.first_packet_ms[:-100]
            self._services.meter.first_packet(
                transport=self.call.transport,
                engine=self._making[measured.turn.id].engine,
                seconds=measured.total_s,
                stages_ms=measured.stages_ms,
            )
        self._report_position(measured.turn, self._now())
        self._want()

    def gap(self, turn: Turn, length_s: float) -> None:
        """Count a gap."""
        self.stats.gaps += 1
        self.stats.gap_s += length_s
        self._services.meter.gap(transport=self.call.transport, seconds=length_s)

    def ended(self, turn: Turn, reason: str, since: float | None) -> None:
        """Count a turn, and let go of what made it."""
        self._making.pop(turn.id, None)
        if turn.track.sent:
            whole = turn.state is State.FINISHED
            heard = len(turn.text) if whole else self.turns.heard_chars(turn, self._now())
            self.stats.last_turn, self.stats.last_outcome = turn.id, turn.state.value
            self.stats.last_heard = _tail(turn.text[:heard]) if turn.kind == "text" else ""
        self._services.meter.turn_ended(outcome=turn.state.value)
        if not self.greeted.done():
            self.greeted.set_result(None)
        if reason in ("speech", "dtmf", "cancel") and since is not None:
            # A pause that became a cut had its last frame when it began.
            silent_at = self._flushed_at if self._flushed_at >= since else self._now()
            self._services.meter.cut(reason=reason, seconds=silent_at - since)
        self._want()

    def dropped_tokens(self, count: int) -> None:
        """Count late tokens."""
        self._services.meter.tokens_dropped(count)

    def spoken_text(self) -> SpokenText:
        """What the caller has heard, and what is to come; digits and clips are no text."""
        stats, speaking = self.stats, self.turns.speaking()
        waiting = [
            turn.text
            for turn in self.turns.live
            if turn.kind == "text" and turn.state is not State.HELD and turn is not speaking
        ]
        if speaking is None:
            return SpokenText(stats.last_turn, stats.last_heard, _head(waiting), stats.last_outcome)
        text = speaking.text if speaking.kind == "text" else ""
        heard = self.turns.heard_chars(speaking, self._now())
        return SpokenText(speaking.id, _tail(text[:heard]), _head([text[heard:], *waiting]), "")

    # --- making sound ----------------------------------------------------------------------------------------------

    async def _make(self, turn: Turn) -> None:
        try:
            async with await self._source(turn) as utterance:
                making = self._making.get(turn.id)
                if making is None:
                    return
                making.utterance = utterance
                for text in making.pending:
                    utterance.feed(text)
                making.pending.clear()
                if making.ended:
                    utterance.end_text()
                async for chunk in utterance:
                    making.engine = chunk.engine
                    if turn.track.sent:
                        in_hand_s = len(turn.track.frames) * self.playout.pacer.ptime_s
                        self._services.meter.playout_buffer(seconds=in_hand_s)
                    self.turns.on_chunk(turn, chunk, self._now())
                    if len(turn.track.frames) * self.playout.pacer.ptime_s > self._services.playout.buffer_s:
                        self._room.clear()
                        await self._room.wait()
            self.turns.on_engine_done(turn, self._now())
        except (EngineError, ClipError) as exc:
            code = exc.code if isinstance(exc, EngineError) else "CLIP"
            log.warning("turn failed", extra={"call": self.call_id, "turn": turn.id, "code": code, "why": str(exc)})
            self.turns.on_failed(turn, code=code, description=str(exc), now=self._now())
        except asyncio.CancelledError:
            raise
        except Exception:  # a bug of ours must end this turn, not the call
            log.exception("turn failed", extra={"call": self.call_id})
            self.turns.on_failed(turn, code="INTERNAL", description="internal error", now=self._now())

    async def _source(self, turn: Turn) -> Utterance:
        fmt = self._leg.outbound
        if turn.kind == "play":
            return await self._services.clips.open(turn.source, fmt, turn.loop)
        if turn.kind == "digits":
            beside = self._leg.carries_dtmf(turn.text)
            if beside:
                self._beside.add(turn.id)
            return await self._services.clips.digits(turn.text, fmt, silent=beside)
        return self._services.engine.open(
            UtteranceRequest(
                utterance_id=f"{self.call_id}.{turn.id}",
                format=fmt,
                voice=turn.voice,
                language=turn.language,
                speed=turn.speed,
                instruct=turn.instruct,
                ahead=turn.front_at is None,
            )
        )

    # --- the ticker's side -----------------------------------------------------------------------------------------

    def _send_frame(self, frame: bytes, now: float) -> bool:
        sent = self._leg.send_frame(frame, now)
        self.playout.frame_sent()
        if not sent:
            self.stats.stalls += 1
            self._services.meter.stalled(transport=self.call.transport)
        if self._uplink is not None:  # before anybody listens, too: the echo of a turn's first frames comes later
            self._uplink.spoke(frame, now=now)
        return sent

    def _after_visit(self, now: float) -> None:
        if self.playout.events:
            self.turns.settle(now)
            self._next_words = now
        if now >= self._next_words:
            self._next_words = self.turns.follow(now)
        if now >= self._next_position:
            self._next_position = now + self._POSITION_EVERY_S
            self.turns.settle(now)
            speaking = self.turns.speaking()
            if speaking is not None:
                self._report_position(speaking, now)
            if not self._room.is_set() and self.playout.buffered_s() < self._services.playout.buffer_s:
                self._room.set()

    def _report_position(self, turn: Turn, now: float) -> None:
        making = self._making.get(turn.id)
        if making is not None and making.utterance is not None:
            making.utterance.played(self.turns.heard_samples(turn, now), at=now)


def _tail(text: str) -> str:
    return text[-SPOKEN_CHARS:]


def _head(turns: Sequence[str]) -> str:
    return "\n".join(text[:SPOKEN_CHARS] for text in turns[:SPOKEN_CHARS])[:SPOKEN_CHARS]


def turn_defaults(
    route: RouteConfig,
    dialogue: DialogueConfig,
    playout: PlayoutConfig,
    barge_in: BargeInConfig,
    *,
    turn_chars: int,
    turns_queued: int,
    hearing: Hearing | None = None,
) -> TurnDefaults:
    """A route's part of the configuration, as ``Turns`` wants it. ``hearing``: where the route has a recogniser."""
    return TurnDefaults(
        interruptible=interruptible_word(route.interruptible),
        preemptible=route.preemptible,
        dtmf_detection=route.dtmf_detection,
        report_input=route.report_input_during_agent_speech,
        language=route.language,
        voice=route.voice,
        speaker_events="speaker-events" in route.events,
        tokens_played="tokens-played" in route.events,
        stale_s=dialogue.stale_ms / 1000,
        end_drain=dialogue.end_drain,
        turn_chars=turn_chars,
        turns_queued=turns_queued,
        ahead_turns=playout.ahead_turns,
        held_turns=playout.held_turns,
        barge_in=interruption_rules(route, barge_in, hearing),
    )


def interruption_rules(route: RouteConfig, barge_in: BargeInConfig, hearing: Hearing | None) -> Rules:
    """What the combination of a route's settings means; ``Policy`` has the table."""
    own = route.barge_in.false_alarm_ms
    false_alarm_s = (barge_in.false_alarm_ms if own is None else own) / 1000
    if false_alarm_s:
        policy = Policy.DURATION
    elif hearing is not None and route.ignore_backchannel:
        policy = Policy.WORDS
    else:
        policy = Policy.ONSET
    return Rules(
        policy=policy,
        recogniser=hearing is not None,
        lasts_s=false_alarm_s if hearing is None else hearing.lasts_s,
        give_up_s=barge_in.max_hum_ms / 1000 + 0.5,
        max_wait_s=barge_in.max_wait_ms / 1000,
    )
