"""One call: its life, from the first message to the manager until all its resources are cleaned up.

Media comes from a leg (WebSocket, WebRTC, SIP), words from the dialogue manager; they are passed on to ``Speech`` (what
we say) and ``Caller`` (what comes from the phone). Decides nothing but when the call is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import orjson

from gateway.call.after_turns import AfterTurns
from gateway.call.hearing.caller import Caller
from gateway.call.hearing.listeners import Listener
from gateway.call.hearing.listening import Hearing
from gateway.call.journal import Journal
from gateway.call.settings import hearing_settings, hints_of, rules, shown, turn_settings, unused
from gateway.call.speech import Means, Speech
from gateway.call.stats import CallStats, Meter, SpokenText
from gateway.call.turn_taking.barge_in import Policy, Rules
from gateway.call.turn_taking.instructions import Instructions
from gateway.call.turn_taking.speakable import lexicon
from gateway.call.turn_taking.turn import TurnDefaults
from gateway.config import BargeInConfig, DialogueConfig, PlayoutConfig, RouteConfig
from gateway.errors import Rejected
from gateway.metering.record import MeterRecord
from gateway.seams.call_record import CallLogSink, CallRecord
from gateway.seams.calling import TransferPolicy
from gateway.seams.dialogue import DialogueLink, Dialogues
from gateway.seams.leg import CallInfo, MediaLeg, Reception, TransferStart
from gateway.seams.messages import (
    Config,
    End,
    Ended,
    Error,
    Hints,
    Inbound,
    Info,
    Interruptible,
    Language,
    Outbound,
    Record,
    Subscribe,
    Transfer,
)
from gateway.seams.shared_state import Handoff
from gateway.seams.tracing import CallTrace, Tracer
from gateway.seams.uplink import Uplink
from gateway.upward import upward
from tts_engine.correlation import Correlation
from voicecodecs.registry import AudioFormat

LANGUAGES_DECLARED = 100
"""Most languages that a manager may declare in a call."""

log = logging.getLogger(__name__)

NO_MANAGER = "dialogue_failed"
"""Why a call ends whose dialogue manager is gone. Whoever goes on with the call has to know: the caller still waits."""

NUMBER_CHARS = 500
"""Most characters that a record keeps of a number or a reason."""


@dataclass(kw_only=True)
class Services(Means):
    """What all calls of a process share."""

    dialogues: Dialogues
    meter: Meter
    calling: TransferPolicy
    tracer: Tracer | None = None
    uplink: Uplink | None = None
    call_log: CallLogSink | None = None
    """Gets what remains of each call. None: nothing remains."""
    voice_problem: Callable[[str, str, str], str] = lambda route, language, voice: ""
    """Says why a route cannot speak a language, or cannot use a voice; empty where it can, or where that is unknown."""
    hearing: Mapping[str, Hearing] = field(default_factory=dict)
    """``Hearing`` by the name of the route; a route that is missing has no recogniser."""


def interruptible_word(value: Interruptible | bool) -> Interruptible:
    """Turn ConversationRelay's two spellings, a word or a boolean, into the word."""
    return ("any" if value else "none") if isinstance(value, bool) else value


def _received(reception: Reception | None) -> dict[str, float | None]:
    """Return the fields of a record that say how the caller's sound arrived."""
    if reception is None:
        return {}
    lost, remote_jitter_s = reception.lost, reception.remote_jitter_s
    return {
        "packetsReceived": reception.received,
        "packetsLost": lost,
        "lossFraction": None if lost is None else round(lost / (reception.received + lost), 5),
        "jitterMs": round(reception.jitter_s * 1000, 2),
        "maxJitterMs": round(reception.max_jitter_s * 1000, 2),
        "remotePacketsLost": reception.remote_lost,
        "remoteJitterMs": None if remote_jitter_s is None else round(remote_jitter_s * 1000, 2),
    }


class Session:
    """One call from setup to ``ended``. ``run`` returns when the call is over and everything of it is cleaned up."""

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
        self.inbound = inbound
        self._leg = leg
        self._route = route
        self._dialogues = services.dialogues
        self._calling = services.calling
        self._meter = services.meter
        self._now = services.ticker.now
        self._begun = self._now()
        self._link: DialogueLink | None = None
        self._early: list[Outbound] = []
        self._over = asyncio.Event()
        self._reason = ""
        self._hang_up_leg = False
        self._handoff_data: str | None = None
        self._hearing = services.hearing.get(call.route)
        self._own_rules = limits.barge_in
        self._voice_problem = services.voice_problem
        self._unused: set[str] = set()
        self._transfer: Transfer | None = None
        """The transfer that waits for speech, or is under way."""
        this = upward(self)
        self._before_transfer = AfterTurns(lambda: this._start_transfer())
        """The wait for that speech."""
        self._managed = True
        """False: no dialogue manager can be had any more."""
        self._fallback_tried = False
        """Whether the transfer under way is that to the route's human, which is tried once."""
        self.handoff: Handoff | None = None
        """What the call leaves for the webhook that follows it."""
        self.wants_round_trip = "debugging" in route.events
        """Whether anybody is told of round trips. A leg that would measure them only for this may ask first."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the dialogue manager has its ``setup``: a leg that rings until then may answer the call."""
        kept = services.call_log
        self.stats = CallStats(
            call.transport,
            services.meter,
            call_id=call.call_id,
            route=call.route,
            tracer=services.tracer,
            journal=None if kept is None else Journal(keeps_text=kept.keeps_text, begun=self._begun),
        )
        tracer = services.tracer
        self.correlation = Correlation(call.call_id, "" if tracer is None else tracer.traceparent(call.call_id))
        self.speech = Speech(
            self.correlation, leg, limits, services, self.stats, tell=lambda message: this.tell(message),
            hang_up=lambda data: this._all_said(data), turn_ended=self._before_transfer.turn_ended,
            voices=services.voices.get(call.route, ""), priority=route.priority, trial=services.trials.of_call(call),
        )  # fmt: skip
        self.turns = self.speech.turns
        self._instructions = Instructions(self.turns)
        self.greeted = self.speech.greeted
        """Done when the first turn has ended in any way: a leg that speaks before it answers may then answer."""
        self.caller = Caller(route, self.turns, this, services.hearing.get(call.route), clock=self._now)
        self.speech.ear = self.caller
        if services.uplink is not None:
            self.caller.connect(services.uplink, call.call_id, inbound, leg.outbound, call.route)

    @property
    def call_id(self) -> str:
        """``VX`` + 32 hex."""
        return self.call.call_id

    def spoken_text(self) -> SpokenText:
        """What the caller has heard, and what will be spoken next."""
        return self.stats.spoken_text(self.turns, self._now())

    # --- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> str:
        """Run the call to its end; returns the reason."""
        try:
            self._link = await self._dialogues.attach(
                self.call, upward(self), codec=f"{self._leg.outbound.encoding}/{self._leg.outbound.sample_rate}"
            )
            for message in self._early:
                self._link.send(message)
            self._early.clear()
            if self._route.welcome_greeting and not self._over.is_set():
                self._instructions.greet(
                    self._route.welcome_greeting,
                    interruptible_word(self._route.welcome_greeting_interruptible),
                    self._now(),
                )
            self.caller.start()
            await self._over.wait()
        except BaseException:
            self._hang_up_leg = True  # without a session nobody can lead the call
            raise
        finally:
            await self._finish()
        return self._reason

    def record(self, *, failed: bool) -> CallRecord | None:
        """Return what the call log gets of this call, which is over. None: there is no log."""
        if self.stats.journal is None:
            return None
        return self.stats.journal.record(
            self.call, started_at=self.stats.started_at, reason=self._reason, failed=failed, now=self._now()
        )

    def traced(self, *, failed: bool) -> CallTrace:
        """Return what a trace tells of the call, which is over."""
        return CallTrace(
            call_id=self.call_id,
            route=self.call.route,
            transport=self.call.transport,
            outcome="failed" if failed else "completed",
            begun_at=self._begun,
            ended_at=self._now(),
        )

    def metered(self, tenant: str, *, numbers: bool) -> MeterRecord:
        """Return the call's record, as the call begins."""
        call = self.call
        return MeterRecord(
            id=call.call_id,
            kind="call",
            tenant=tenant,
            startedAt=self.stats.started_at,
            route=call.route,
            transport=call.transport,
            direction=call.direction,
            from_=call.from_[:NUMBER_CHARS] if numbers else "",
            to=call.to[:NUMBER_CHARS] if numbers else "",
        )

    def metered_so_far(self, record: MeterRecord) -> MeterRecord:
        """Return the call's record with what is known now; turns that are not over are not in it."""
        return record.model_copy(update=self._so_far(record))

    def metered_to_its_end(self, record: MeterRecord, *, failed: bool) -> MeterRecord:
        """Return the call's record, as the call is over."""
        ended = {"outcome": "failed" if failed else "completed", "reason": self._reason[:NUMBER_CHARS]}
        return record.model_copy(update=self._so_far(record) | ended)

    def _so_far(self, record: MeterRecord) -> dict[str, object]:
        stats = self.stats
        return {
            "endedAt": record.startedAt + self._now() - self._begun,
            "characters": stats.characters,
            "audioSeconds": stats.frames * self._leg.outbound.ptime_ms / 1000,
            "turns": stats.turns,
            "cuts": stats.cuts,
            "gaps": stats.gaps,
            "gapMs": round(stats.gap_s * 1000),
            "firstPacketMs": stats.longest_first_packet_ms,
            **_received(self._leg.reception()),
        }

    async def _finish(self) -> None:
        now = self._now()
        self._before_transfer.cancel()
        self.speech.close("ended" if self._hang_up_leg else "hangup", now)
        self.caller.close()
        await self.speech.aclose()
        await self.caller.aclose()
        self.tell(Ended(reason=self._reason, duration_ms=round((now - self._begun) * 1000)))
        if self._link is not None:
            await self._link.aclose()
        if self._hang_up_leg:
            self._leg.hang_up(self._reason, self._handoff_data)

    def end(self, reason: str, *, hang_up: bool, handoff_data: str | None = None) -> None:
        """End the call; ``hang_up`` closes the leg too. Later calls change nothing: the first reason stays."""
        if not self._over.is_set():
            self._reason = reason
            self._hang_up_leg = hang_up
            self._handoff_data = handoff_data
            self._over.set()

    def _all_said(self, handoff_data: str | None) -> None:
        if self._transfer is not None:  # what becomes of the call is known when that is over
            return
        self._leave("ended", handoff_data)
        self.end("end", hang_up=True, handoff_data=handoff_data)

    def _leave(self, reason: str, handoff_data: str | None, *, transfer_target: str = "") -> None:
        self.handoff = Handoff(self.call_id, reason, handoff_data, transfer_target, self.call.route)

    @contextmanager
    def listen_in(self, tenant: str) -> Iterator[Listener]:
        """Let somebody with a key of ``tenant`` hear both sides while the context lasts; the journal knows of it.

        Raises:
            Rejected: 429, too many listen in already.
        """
        with self.caller.listeners.join() as listener:
            self._meter.listener_joined()
            self._note_listener(tenant, "joined")
            try:
                yield listener
            finally:
                self._meter.listener_dropped(listener.dropped)
                self._note_listener(tenant, "left")

    def _note_listener(self, tenant: str, event: Literal["joined", "left"]) -> None:
        log.info("listening in", extra={"call": self.call_id, "tenant": tenant, "event": event})
        if self.stats.journal is not None:
            self.stats.journal.listened(tenant, event, self._now())

    # --- the media leg's side (CallEvents) -------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        """Whether anybody wants the caller's audio now; read for every frame that comes."""
        return self.caller.wanted

    def on_audio(self, payload: bytes) -> None:
        """Take the caller's audio; called only while ``listening`` is true."""
        self.caller.on_audio(payload)

    def on_digit(self, digit: str) -> None:
        """The caller pressed a key, and the leg says so."""
        self.caller.on_digit(digit)

    def on_mark(self, name: str) -> None:
        """The peer has played up to a mark of ours."""
        self.speech.mark_reached(name, self._now())

    def on_playback(self, *, started: bool) -> None:
        """The peer has begun to play after silence (``started``), or has played all that it got."""
        self.speech.playback(started=started, now=self._now())

    def on_round_trip(self, seconds: float) -> None:
        """The way to the caller and back takes this long now."""
        if self.wants_round_trip:
            self.tell(Info(name="roundTripDelayMs", value=str(round(seconds * 1000))))

    def on_hold(self, on_hold: bool) -> None:
        """The leg cannot carry sound now (it is on hold, or not answered yet), or it can again.

        While on hold, speech stops where it is, new turns wait behind it, and none of this counts as heard. Afterwards
        speech goes on where it stopped.
        """
        self.speech.put_on_hold(on_hold, self._now())

    def on_transferred(self, problem: str) -> None:
        """A transfer that was under way has ended. If ``problem`` is not empty, it failed and the call goes on."""
        if self._before_transfer.waits:
            return  # the leg means an earlier one
        message, self._transfer = self._transfer, None
        if message is None:
            return
        if self._fallback_tried:
            if problem:
                log.warning("fallback transfer failed", extra={"call": self.call_id, "why": problem})
            self._without_manager("" if problem else message.target)
        elif not problem:
            self._transferred(message)
        else:
            self._not_transferred(Error(description=f"transfer: {problem}", code="transfer_failed", field="target"))

    def on_leg_closed(self, reason: str) -> None:
        """The caller is gone."""
        self.end(reason, hang_up=False)

    # --- the dialogue manager's side (DialogueSink) ----------------------------------------------------------------

    def tell(self, message: Outbound) -> None:
        """Send to the manager."""
        if self.stats.journal is not None:
            self.stats.journal.told(message, self._now())
        if self._link is None:
            self._early.append(message)
        else:
            self._link.send(message)

    def send_audio(self, pcm: bytes) -> None:
        """Send 20 ms of the caller's audio to the manager."""
        if self._link is not None:
            self._link.send_audio(pcm)

    def recording_lost(self, reason: str) -> None:
        """The call is no longer recorded, because its file could not be written."""
        if not self._over.is_set():
            self.tell(Error(description=f"the recording was given up: {reason}", code="recording_lost"))

    def on_message(self, message: Inbound) -> None:
        """A decoded message of the dialogue manager."""
        match message:
            case Subscribe():
                self.caller.subscribe(message)
            case Record():
                if not self.caller.record(message.state):
                    self.tell(
                        Error(description="record: this call is not recorded", code="not_recording", field="state")
                    )
            case Transfer():
                self._begin_transfer(message)
            case Config():
                self._configure(message, {}, shown(message))
            case Hints() if message.language:
                told = {"hints": list(message.hints), "language": message.language}
                self._configure(Config(), {message.language: message.hints}, told)
            case Hints():
                self._configure(hints_of(message), {}, {"hints": list(message.hints)})
            case Language():
                self._switch(message)
            case _:
                self._instructions.on_message(message, self._now())

    def _configure(self, config: Config, hints: Mapping[str, tuple[str, ...]], told: Mapping[str, object]) -> None:
        """Change settings of the call. ``hints`` are those of single languages; ``told`` is what was asked for."""
        self._say_unused(unused(config, self._hearing))
        defaults = turn_settings(config, self.turns.defaults)
        if config.ignore_backchannel is not None:
            defaults = replace(defaults, barge_in=rules(config, self._own_rules, self._hearing))
        self.turns.configure(defaults)
        if self._hearing is not None:
            self._hearing = hearing_settings(config, self._hearing)
            self.caller.configure(self._hearing, hints)
        self.caller.refresh(self._now())
        self._config_updated(told)

    def _switch(self, message: Language) -> None:
        """Declare languages, then switch to one. What is not possible is an error and changes nothing."""
        self._say_unused(message.ignored)
        for field_name, language, voice in (
            ("ttsLanguage", message.tts_language, ""),
            *(("voice", each.code, each.voice) for each in message.languages if each.voice),
        ):
            problem = self._voice_problem(self.call.route, language, voice) if language or voice else ""
            if problem:
                self.tell(
                    Error(description=f"language.{field_name}: {problem}", code="not_supported", field=field_name)
                )
                return
        if len(self.turns.queue.voices) + len(message.languages) > LANGUAGES_DECLARED:
            told = f"language: expected at most {LANGUAGES_DECLARED} declared languages in a call"
            self.tell(Error(description=told, code="too_many_languages", field="code"))
            return
        if self._hearing is not None and message.languages:
            self.caller.configure(self._hearing, {e.code: e.hints for e in message.languages if e.hints is not None})
        if not self.caller.transcribe(message.transcription_language):
            return
        self._instructions.on_message(message, self._now())
        switched = {"ttsLanguage": message.tts_language, "transcriptionLanguage": message.transcription_language}
        declared = [
            {"code": each.code, "voice": each.voice, "hints": list(each.hints or ())} for each in message.languages
        ]
        told_languages: dict[str, object] = {"languages": declared} if declared else {}
        self._config_updated({**{name: tag for name, tag in switched.items() if tag}, **told_languages})

    def _config_updated(self, changed: Mapping[str, object]) -> None:
        if "config-updated" in self._route.events and changed:
            self.tell(Info(name="configUpdated", value=orjson.dumps(changed).decode()))

    def _say_unused(self, names: tuple[str, ...]) -> None:
        """Log, once in a call, which settings of the manager change nothing."""
        new = [name for name in names if name not in self._unused]
        if new:
            self._unused.update(new)
            log.info("settings without effect", extra={"call": self.call_id, "settings": " ".join(new)})

    def _begin_transfer(self, message: Transfer) -> None:
        """Transfer the call behind the speech that was queued before."""
        if self._transfer is not None:
            self.tell(Error(description="transfer: one is under way", code="transfer_failed", field="type"))
            return
        try:
            target = self._calling.transfer(self.call, message.target, now=self._now())
        except Rejected as exc:
            self._refuse_transfer(exc)
            return
        self._transfer = replace(message, target=target)
        wait_s = self._route.dialogue.transfer_wait_s
        before = self._instructions.complete_line(self._now()) if wait_s else []
        self._before_transfer.wait(before, wait_s)

    def _start_transfer(self) -> None:
        message = self._transfer
        assert message is not None
        try:
            started = self._leg.transfer(message.target, message.handoff_data)
        except Rejected as exc:
            self._refuse_transfer(exc)
            return
        if started is TransferStart.HANDED_OVER:
            self._transferred(message)
        elif started is TransferStart.REFUSED:
            description = f"transfer: a {self.call.transport} call cannot be transferred from here"
            self._not_transferred(Error(description=description, code="not_supported", field="type"))

    def _refuse_transfer(self, why: Rejected) -> None:
        self._meter.call_rejected(why.code)
        log.info("transfer refused", extra={"call": self.call_id, "why": why.code})
        self._not_transferred(Error(description=f"transfer: {why}", code=why.code, field="target"))

    def _not_transferred(self, error: Error) -> None:
        """The call stays, and goes on with whoever leads it now."""
        self._transfer = None
        if not self._managed:
            self._to_fallback()
            return
        self.tell(error)
        ending = self.turns.queue.ending
        if ending is not None and self.turns.closed and not self._over.is_set():  # nobody leads it any more
            self._all_said(ending.handoff_data)

    def _transferred(self, message: Transfer) -> None:
        self._leave("transferred", message.handoff_data, transfer_target=message.target)
        self.end("transferred", hang_up=True, handoff_data=message.handoff_data)

    def on_dialogue_ready(self) -> None:
        """The manager has its ``setup``."""
        if not self.ready.done():
            self.ready.set_result(None)

    def on_dialogue_closed(self) -> None:
        """The manager closed its line on purpose, which means the same as the message ``end``."""
        self._instructions.on_message(End(), self._now())

    def on_dialogue_lost(self) -> None:
        """The manager's line broke."""
        self._instructions.on_dialogue_lost(self._route.fallback.text, self._now())

    def on_dialogue_resumed(self) -> None:
        """The manager is back."""

    def on_dialogue_failed(self, description: str) -> None:
        """No dialogue manager can be had for this call."""
        log.warning("dialogue manager lost", extra={"call": self.call_id, "why": description})
        self._meter.dialogue_failed(route=self.call.route)
        self._managed = False
        if self._transfer is None:
            self._to_fallback()

    def _to_fallback(self) -> None:
        """Without a manager: put the caller through to the route's human, or leave the caller to whoever goes on with
        the call."""
        target = self._route.fallback.transfer
        if target and not self._over.is_set():
            try:
                target = self._calling.fallback(self.call, target)
                started = self._leg.transfer(target, reason=NO_MANAGER)
            except Rejected as exc:
                log.warning("fallback transfer refused", extra={"call": self.call_id, "why": exc.code})
                started = TransferStart.REFUSED
            if started is TransferStart.UNDER_WAY:
                self._transfer = Transfer(target=target)
                self._fallback_tried = True
                return
            target = target if started is TransferStart.HANDED_OVER else ""
        self._without_manager(target)

    def _without_manager(self, target: str = "") -> None:
        self._leave(NO_MANAGER, None, transfer_target=target)
        self.end(NO_MANAGER, hang_up=True)


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
    """Make a route's defaults for ``Turns`` from the configuration. ``hearing`` is None without a recogniser."""
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
        lexicon=lexicon(tuple(route.lexicon.items())),
    )


def interruption_rules(route: RouteConfig, barge_in: BargeInConfig, hearing: Hearing | None) -> Rules:
    """Find the interruption rules that a route's settings mean; ``gateway.call.turn_taking.barge_in`` has the table."""
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
