"""The life of one call, from the first message to the manager until all its resources are released.

Media comes from a leg (WebSocket, WebRTC, SIP), text from the dialogue manager. ``Session`` passes both to ``Speech``
(what the bot says) and ``Caller`` (what comes from the phone). It decides only when the call is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import orjson

from gateway.call.answering.other_end import OtherEnd
from gateway.call.answering.plan import AnswerPlan
from gateway.call.configuration import Configuration
from gateway.call.defaults import interruptible_word
from gateway.call.ending import CallEnd
from gateway.call.hearing.caller import Caller
from gateway.call.hearing.listeners import Listener
from gateway.call.hearing.listening import ListeningSettings
from gateway.call.joined.bridge import Bridge, JoiningPolicy
from gateway.call.joined.conferences import Conferences
from gateway.call.joined.room_place import RoomPlace
from gateway.call.joined.second_legs import SecondLegs
from gateway.call.joined.supervisors import Supervisors
from gateway.call.journal import Journal
from gateway.call.metering import Metering
from gateway.call.outbox import Outbox
from gateway.call.session_recording import CallCopy
from gateway.call.speech import Means, Speech
from gateway.call.stats import CallStats, Meter, SpokenText
from gateway.call.transfers import Transfers
from gateway.call.turn_taking.turn import TurnDefaults
from gateway.config import RouteConfig
from gateway.mixing.seat import Seat
from gateway.seams.call_record import CallLogSink, CallRecord, SupervisorEvent
from gateway.seams.calling import TransferPolicy
from gateway.seams.dialogue import Dialogues
from gateway.seams.end_cause import UNKNOWN, EndCause
from gateway.seams.leg import CallInfo, MediaLeg
from gateway.seams.messages import (
    Background,
    Cancel,
    ConfigChange,
    End,
    Ended,
    Error,
    Hints,
    HoldLeg,
    Inbound,
    Info,
    Join,
    Language,
    Leave,
    Mute,
    Record,
    ResumeLeg,
    Subscribe,
    Transfer,
)
from gateway.seams.originate import NoPlacedCalls, PlacedCalls
from gateway.seams.session_recording import SessionRecordingClient
from gateway.seams.tracing import CallTrace, Tracer
from gateway.seams.uplink import Uplink
from tts_engine.correlation import Correlation
from voicecodecs.registry import AudioFormat

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Services(Means):
    """The services that all calls of a process share."""

    dialogues: Dialogues
    second_legs: SecondLegs
    meter: Meter
    calling: TransferPolicy
    tracer: Tracer | None = None
    uplink: Uplink | None = None
    call_log: CallLogSink | None = None
    """Receives the record of each ended call. None: calls are not recorded."""
    voice_problem: Callable[[str, str, str], str] = lambda route, language, voice: ""
    """Returns why a route cannot use a language or a voice; empty if it can, or if that is unknown."""
    session_recording: SessionRecordingClient | None = None
    """Copies calls to session recording servers. None: there is no SIP."""
    joining: Mapping[str, JoiningPolicy] = field(default_factory=dict)
    """Rules for second legs by the name of the route; a route that is missing has the usual ones."""
    hearing: Mapping[str, ListeningSettings] = field(default_factory=dict)
    """``ListeningSettings`` by the name of the route; a route that is missing has no recogniser."""
    placed: PlacedCalls = field(default_factory=NoPlacedCalls)
    conferences: Conferences | None = None
    """The named rooms. None: there are none."""


class Session:
    """One call from setup to ``ended``. ``run`` returns when the call is over and its resources are released."""

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
        self.seat = Seat(leg, inbound)
        """The call's leg, which may be joined with others."""
        self._route = route
        self._dialogues = services.dialogues
        self._meter = services.meter
        self._now = services.ticker.now
        self._begun = self._now()
        self.ending = CallEnd(call)
        self.wants_round_trip = "debugging" in route.events
        """True if the manager receives round-trip times. A leg that measures them only for that may check it first."""
        self._wants_caller = "caller-changed" in route.events
        loop = asyncio.get_running_loop()
        self.metered: asyncio.Future[None] = loop.create_future()
        """Done when the call's record permits answering and speaking (``wait_until_metered``)."""
        self.metered.set_result(None)
        self.ready: asyncio.Future[None] = loop.create_future()
        """Done when the dialogue manager has also received ``setup``; a leg that rings until then may answer the
        call."""
        self._has_manager = False
        self._leg_on_hold = False
        self._held_by_manager = self._taken_over = False
        kept = services.call_log
        self.stats = CallStats(
            call.transport,
            services.meter,
            call_id=call.call_id,
            route=call.route,
            tracer=services.tracer,
            journal=None if kept is None else Journal(keeps_text=kept.keeps_text, begun=self._begun),
        )
        self.outbox = Outbox(self.ending, self.stats.journal, clock=self._now)
        self._placed = services.placed
        self._placed.begun(call.call_id, self.outbox.tell)
        self.metering = Metering(call, self.seat, self.stats, self._now)
        tracer = services.tracer
        self.correlation = Correlation(
            call.call_id, "" if tracer is None else tracer.traceparent(call.call_id), call.route
        )
        self.speech = Speech(
            self.correlation, self.seat, limits, services, self.stats, tell=self.outbox.tell,
            voices=services.voices.get(call.route, ""), priority=route.priority, trial=services.trials.of_call(call),
        )  # fmt: skip
        self.turns = self.speech.turns
        self._instructions = self.speech.instructions
        self._bridge = Bridge(
            call, self.seat, services.second_legs, services.clips, services.ticker,
            services.joining.get(call.route, JoiningPolicy()), tell=self.outbox.tell,
            hold_speech=self._hold_speech, pacing_error=services.meter.pacing_error(call.transport),
            count=services.meter.bridge_leg,
        )  # fmt: skip
        self._transfers = Transfers(
            self.outbox, self.ending, call, self.seat, route, calling=services.calling, meter=services.meter,
            turns=self.turns, instructions=self._instructions, bridge=self._bridge, clock=self._now,
        )  # fmt: skip
        self._bridge.owner = self._transfers
        self.supervisors = Supervisors(call, self._bridge, services.second_legs, tell=self.outbox.tell, owner=self)
        self._bridge.guests = self.supervisors
        self.rooms = RoomPlace(
            call, self.seat, self._bridge, self.supervisors, services.conferences, tell=self.outbox.tell, owner=self
        )
        self.greeted = self.speech.greeted
        """Done when the first turn has ended in any way; a leg that speaks before it answers may then answer."""
        hearing = services.hearing.get(call.route)
        self.caller = Caller(route, self.turns, self.outbox, hearing, clock=self._now)
        if call.direction.startswith("outbound") and not call.joined_to:
            self.caller.other_end = OtherEnd(
                route.language, AnswerPlan(route.answer, self._instructions, clock=self._now),
                tell=self.outbox.tell, meter=services.meter, clock=self._now,
            )  # fmt: skip
        self._copy = CallCopy(route, services.session_recording, self.caller, self.outbox)
        self._configuration = Configuration(
            call, self.turns, self.caller, self._instructions, hearing, voice_problem=services.voice_problem,
            tell=self.outbox.tell, announced="config-updated" in route.events, clock=self._now,
        )  # fmt: skip
        self.speech.caller, self.speech.transfers = self.caller, self._transfers
        if services.uplink is not None:
            self.caller.connect(services.uplink, call.call_id, inbound, leg.outbound, call.route)
        self._configuration.declare(route.languages)
        self.seat.sent = self.caller.heard

    @property
    def call_id(self) -> str:
        """``VX`` + 32 hex."""
        return self.call.call_id

    def spoken_text(self) -> SpokenText:
        """Return what the caller has heard and what will be spoken next."""
        return self.stats.spoken_text(self.turns, self._now())

    # --- life ------------------------------------------------------------------------------------------------------

    def wait_until_metered(self, metered: asyncio.Future[None]) -> None:
        """Keep speech on hold until the start of the call's record is stored; speech is synthesised meanwhile. Call
        this before ``run``."""
        if not metered.done():
            self.metered = metered
            self._put_on_hold()
            metered.add_done_callback(lambda _: self._on_metered())

    def _on_metered(self) -> None:
        if not self.ending.decided:
            self._put_on_hold()
            self._check_ready()

    async def run(self) -> str:
        """Run the call to its end; return the reason."""
        try:
            codec = f"{self.seat.outbound.encoding}/{self.seat.outbound.sample_rate}"
            self.outbox.connect(await self._dialogues.attach(self.call, self, codec=codec))
            if self._route.welcome_greeting and self.call.greets and not self.ending.decided:
                self._instructions.greet(
                    self._route.welcome_greeting,
                    interruptible_word(self._route.welcome_greeting_interruptible),
                    self._now(),
                )
            self.caller.start()
            self._copy.call_begins(self.call)
            await self.ending.wait()
        except BaseException:
            self.ending.hangs_up = True  # no session is left to control the call
            raise
        finally:
            await self._finish()
        return self.ending.reason

    def record(self, *, failed: bool) -> CallRecord | None:
        """Return the call log's record of the ended call. None: there is no log."""
        if self.stats.journal is None:
            return None
        return self.stats.journal.record(
            self.call,
            started_at=self.stats.started_at,
            reason=self.ending.reason,
            cause=self.ending.cause,
            failed=failed,
            now=self._now(),
        )

    def traced(self, *, failed: bool) -> CallTrace:
        """Return the trace of the ended call."""
        return CallTrace(
            call_id=self.call_id,
            route=self.call.route,
            transport=self.call.transport,
            outcome="failed" if failed else "completed",
            begun_at=self._begun,
            ended_at=self._now(),
        )

    async def _finish(self) -> None:
        """Release the call's parts. Each drops the references that would make a cycle."""
        now = self._now()
        self._transfers.close()
        self.supervisors.close()
        self.rooms.close()
        self._bridge.close()
        self.seat.close()
        self.speech.close("ended" if self.ending.hangs_up else "hangup", now)
        self.caller.close()
        await self.speech.aclose()
        await self.caller.aclose()
        self._placed.over(self.call_id, self.ending.cause)
        self.outbox.tell(
            Ended(reason=self.ending.reason, duration_ms=round((now - self._begun) * 1000), cause=self.ending.cause)
        )
        await self.outbox.aclose()
        if self.ending.hangs_up:
            await self.metered  # the start of the call is stored before the next step of the call can ask for it
            self.seat.hang_up(self.ending.reason, self.ending.handoff_data)

    def end(self, reason: str, *, hang_up: bool) -> None:
        """End the call; ``hang_up`` also closes the leg. Later calls change nothing: the first reason stays."""
        self.ending.end(reason, hang_up=hang_up)

    def move(self, conference: str) -> None:
        """End the call here; it continues in a conference of its carrier."""
        self.ending.leave("transferred", None, conference=conference)

    @contextmanager
    def listen_in(self, tenant: str) -> Iterator[Listener]:
        """Let a client with a key of ``tenant`` hear both sides while the context lasts; the journal records it.

        Raises:
            Rejected: 429 if too many clients listen already.
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
        log.info(
            "listening in", extra={"call": self.call_id, "route": self.call.route, "tenant": tenant, "event": event}
        )
        if self.stats.journal is not None:
            self.stats.journal.listened(tenant, event, self._now())

    # --- the media leg's side (CallEvents) -------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        """True if any part needs the caller's audio now; read for every frame that arrives."""
        return self.caller.wanted or self.seat.joined

    def on_audio(self, payload: bytes) -> None:
        """Take the caller's audio; called only while ``listening`` is true."""
        if self.seat.joined:
            self.seat.on_audio(payload, self._now())
        if self.caller.wanted:
            self.caller.on_audio(payload)

    def on_digit(self, digit: str) -> None:
        """The leg reports a key that the caller pressed."""
        self.caller.on_digit(digit)
        self._bridge.on_digit(digit)
        self.rooms.on_digit()

    def on_mark(self, name: str) -> None:
        """The peer has played up to a mark of the playout."""
        self.speech.mark_reached(name, self._now())

    def on_playback(self, *, started: bool) -> None:
        """The peer has begun to play after silence (``started``), or has played all that it received."""
        self.speech.playback(started=started, now=self._now())

    def on_round_trip(self, seconds: float) -> None:
        """Report a new round-trip time of the media path, or of the dialled manager's socket."""
        if self.wants_round_trip:
            self.outbox.tell(Info(name="roundTripDelayMs", value=str(round(seconds * 1000))))

    def on_described(self, *, call_sid: str, from_: str, to: str, parameters: Mapping[str, str]) -> None:
        """Fill in the call's description, which came after the call began, for its record, its control and the next
        step."""
        call = self.call
        self.call = replace(
            call,
            call_sid=call_sid or call.call_sid,
            from_=from_ or call.from_,
            to=to or call.to,
            custom_parameters={**call.custom_parameters, **parameters},
        )
        if from_:
            self.on_caller_changed(from_, self.call.caller_name)

    def on_caller_changed(self, from_: str, caller_name: str) -> None:
        """Report that the peer is another party now."""
        if self._wants_caller:
            value = orjson.dumps({"from": from_, "callerName": caller_name}).decode()
            self.outbox.tell(Info(name="callerChanged", value=value))

    def on_leg_replaced(self, leg: MediaLeg, call_sid: str) -> None:
        """Continue the call on another leg with the same formats."""
        self.call = replace(self.call, call_sid=call_sid)
        self.seat.leg = leg

    def on_hold(self, on_hold: bool) -> None:
        """The leg cannot carry sound now (on hold, or not answered yet), or can again.

        While on hold, speech stops where it is, new turns wait, and no time counts as heard. Afterwards speech resumes
        where it stopped.
        """
        self._leg_on_hold = on_hold
        self._put_on_hold()

    def _put_on_hold(self) -> None:
        held = self._leg_on_hold or self._held_by_manager or self._taken_over or not self.metered.done()
        self.speech.put_on_hold(held, self._now())

    def _hold_speech(self, on_hold: bool) -> None:
        """The manager has put the caller on hold, or ends that."""
        self._held_by_manager = on_hold
        self._put_on_hold()

    # --- supervisors and rooms (SupervisedCall, Company) ----------------------------------------------------------

    def taken_over(self, taken_over: bool) -> None:
        """A supervisor speaks in place of the bot, or does so no more. What the bot was to say meanwhile is stale."""
        self._taken_over = taken_over
        self._instructions.on_message(Cancel(), self._now())
        self._put_on_hold()
        if not taken_over:
            self._transfers.take_over_ends()

    def accompanied(self, accompanied: bool) -> None:
        """A supervisor or others of a room talk with the caller, or do so no more."""
        self._transfers.accompany(accompanied)

    def returned(self) -> None:
        """The call has left a named room: the caller is with the bot again."""
        self._transfers.take_over_ends()

    @property
    def without_bot(self) -> bool:
        """True if the bot has left the call."""
        return self._transfers.bot_has_left

    def note_supervisor(self, by: str, leg: str, event: SupervisorEvent) -> None:
        """Enter what a supervisor does in the call's record."""
        if self.stats.journal is not None:
            self.stats.journal.supervised(by, leg, event, self._now())

    def on_transferred(self, problem: str, status: int = 0) -> None:
        """A transfer that was under way has ended; see ``CallEvents``."""
        self._transfers.ended(problem, status)

    def on_leg_closed(self, reason: str, cause: EndCause = UNKNOWN) -> None:
        """The leg is closed: the caller is gone."""
        self.ending.end(reason, hang_up=False, cause=cause)

    # --- the dialogue manager's side (DialogueSink) ----------------------------------------------------------------

    def on_message(self, message: Inbound) -> None:
        """Take a decoded message of the dialogue manager."""
        match message:
            case Subscribe():
                self.caller.subscribe(message)
            case Record():
                copied = self._copy.record(message.state, self.call)
                in_room = self.rooms.record(message.state)
                if not self.caller.record(message.state) and not copied and not in_room:
                    self.outbox.tell(
                        Error(description="record: this call is not recorded", code="not_recording", field="state")
                    )
            case Transfer():
                self._transfers.begin(message, self._now())
            case Leave() if not self.rooms.joined and not message.room:
                self._bridge.take_off(message)
            case Join() | Leave() | Mute():
                self.rooms.on_message(message)
            case HoldLeg():
                self._bridge.hold(message)
            case ResumeLeg():
                self._bridge.resume(message)
            case Background():
                self._bridge.background(message)
            case ConfigChange() | Hints() | Language():
                self._configuration.change(message)
            case _:
                self._instructions.on_message(message, self._now())

    def on_dialogue_ready(self) -> None:
        """The manager has received ``setup``."""
        self._has_manager = True
        self._check_ready()

    def _check_ready(self) -> None:
        if self._has_manager and self.metered.done() and not self.ready.done():
            self.ready.set_result(None)

    def on_dialogue_closed(self) -> None:
        """The manager closed its connection on purpose, which means the same as the message ``end``."""
        self._instructions.departure.has_manager = False
        self._instructions.on_message(End(), self._now())

    def on_dialogue_lost(self) -> None:
        """The manager's connection broke."""
        self._instructions.departure.has_manager = False
        people_talk = self._bridge.joined or self._bridge.without_bot  # nothing is said between
        said = "" if people_talk else self._route.fallback.text
        self._instructions.on_dialogue_lost(said, self._now())

    def on_dialogue_resumed(self) -> None:
        """The manager is connected again."""
        self._instructions.departure.has_manager = True

    def on_dialogue_skipped(self, kind: str, number: int) -> None:
        """The manager failed twice on a message, which is not sent again."""
        self.outbox.note(
            Error(
                description=f"message {number} ({kind}) is not sent again: the manager's line broke twice after it",
                code="message_skipped",
            )
        )

    def on_dialogue_failed(self, description: str) -> None:
        """No dialogue manager is available for this call any more."""
        log.warning("dialogue manager lost", extra={"call": self.call_id, "route": self.call.route, "why": description})
        self._instructions.departure.has_manager = False
        self._meter.dialogue_failed(route=self.call.route)
        self._transfers.manager_gone()
