"""The bridge of one call: the gateway calls a person, and joins the caller with them. Also what a single leg hears
beside the bot: hold and background.

``Course`` decides; this file carries out. While the person's phone rings, the caller hears its ringing or its early
media. In a warm transfer the caller hears the route's clip and the bot until the person accepts. Joined people go on
talking when the application or the engine is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from gateway.call.joined.course import BridgeAct, Course, Step
from gateway.call.joined.second_legs import JoinableCall, Reach, SecondLegs
from gateway.call.joined.sounds import RINGBACK_HZ, ClipSamples, ringback
from gateway.errors import ClipError, Rejected
from gateway.histogram import Histogram
from gateway.media.ticker import Ticker
from gateway.mixing.mixer import Mixer
from gateway.mixing.room import Room
from gateway.mixing.seat import Seat, voice_of
from gateway.mixing.sources import PlayedSource
from gateway.seams.end_cause import UNKNOWN, EndCause
from gateway.seams.leg import CallInfo, TransferStart
from gateway.seams.messages import (
    Background,
    Cancel,
    ConfigChange,
    Dtmf,
    Ended,
    Error,
    HoldLeg,
    Leave,
    LegEvent,
    LegEventName,
    OfLeg,
    Outbound,
    Prompt,
    ResumeLeg,
    Text,
    Transfer,
    TurnEvent,
)
from gateway.seams.originate import Attempt, CallOrder, SecondLeg
from voicecodecs.dtmf import tones
from voicecodecs.pcm import to_int16

log = logging.getLogger(__name__)

_TONE_HZ = 8000

_EVENTS: dict[str, LegEventName] = {"busy": "busy", "no_answer": "noAnswer", "declined": "declined"}
"""Event of a failed attempt by its reason; every other one is ``failed``."""

_REASONS = {BridgeAct.GONE: "hangup", BridgeAct.TOO_LONG: "too_long", BridgeAct.MOVED: "transferred"}
"""Reason of the end of the person's leg, by the end of the course."""

_BRIEFING = "briefing"
"""Turn of the person's session that speaks the briefing."""

_MUSIC_DUCK_DB = 12.0
"""Attenuation of the music under the bot's voice."""

_REPLACE_WAIT_S = 15.0
"""Time for the peer's new call to replace the person's leg, after the caller's leg has ended."""

_BY_MANAGER = EndCause(by="manager")


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningPolicy:
    """Rules for second legs."""

    shows_caller: bool = False
    """True: the person sees the caller's number, and the number that was called."""
    longest_s: float = 14_400.0
    """Longest time for which two calls are joined, seconds."""
    passes_keys: bool = True
    """True: keys that one side presses reach the other. The application gets them in any case."""
    hold_clip: str = ""
    """Clip for a leg on hold. Empty: silence."""


class BridgeOwner(Protocol):
    """The part of a call that asked for a bridge."""

    def bridge_failed(self, problem: str, code: str) -> None:
        """The person was not reached. The caller is with the bot again."""
        ...

    def bridge_over(self, cause: EndCause, *, returns: bool) -> None:
        """The person has hung up. ``returns``: the caller goes back to the bot."""
        ...

    def bridge_too_long(self) -> None:
        """The longest time is over; the person's leg has been ended."""
        ...

    def bridge_moved(self, conference: str) -> None:
        """The peer has joined the two, or the carrier does it in this conference."""
        ...


class RoomGuests(Protocol):
    """The legs beside the call's two sides: supervisors."""

    @property
    def present(self) -> bool:
        """True if one of them is in the room."""
        ...

    @property
    def taken_over(self) -> bool:
        """True if one of them speaks in place of the bot."""
        ...

    def arrange(self, mixer: Mixer, person: str, *, caller_free: bool, person_free: bool) -> None:
        """Let each of them hear and be heard. ``person``: name of the person's leg, or empty. A side that is not free
        is on hold."""
        ...


class _NoGuests:
    """A call that no one else has joined."""

    present = taken_over = False

    def arrange(self, mixer: Mixer, person: str, *, caller_free: bool, person_free: bool) -> None: ...


class _Gone:
    """The owner of a bridge whose call is over."""

    def bridge_failed(self, problem: str, code: str) -> None: ...

    def bridge_over(self, cause: EndCause, *, returns: bool) -> None: ...

    def bridge_too_long(self) -> None: ...

    def bridge_moved(self, conference: str) -> None: ...


def _ignore(_on_hold: bool) -> None:
    return None


class Bridge:
    """The bridge of one call, its holds and its background. Most calls never use it; then it costs nothing.

    Args:
        call: description of the call.
        seat: the call's leg.
        legs: places second legs.
        clips: decodes clips.
        timer: the frame timer.
        tell: sends a message to the application.
        hold_speech: stops the bot's speech to the caller, or lets it resume.
        pacing_error: observes the lateness of each tick, seconds.
        count: counts an event of a second leg.
    """

    owner: BridgeOwner
    """Set before the first transfer."""

    def __init__(
        self,
        call: CallInfo,
        seat: Seat,
        legs: SecondLegs,
        clips: ClipSamples,
        timer: Ticker,
        policy: JoiningPolicy,
        *,
        tell: Callable[[Outbound], None],
        hold_speech: Callable[[bool], None],
        pacing_error: Histogram,
        count: Callable[[str], None],
    ) -> None:
        self._call = call
        self._seat = seat
        self._legs = legs
        self.reach = Reach(legs, call, seat)
        self._clips = clips
        self._timer = timer
        self._policy = policy
        self._tell = tell
        self._hold_speech = hold_speech
        self._pacing_error = pacing_error
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._now = timer.now
        self._room: Room | None = None
        self._ringback = f"{call.call_id}:ringback"
        self._music = f"{call.call_id}:music"
        self._background_name = f"{call.call_id}:background"
        self._course: Course | None = None
        """The course of the present bridge. None: there is none."""
        self._problem = ""
        """The reason for which a person was not reached, for the application's error."""
        self._attempt: Attempt | None = None
        self._leg: JoinableCall | None = None
        self._handing_over = False
        """True while the caller's peer is asked to join the two."""
        self._conference = ""
        """Conference of the carrier in which the two continue."""
        self._held: set[str] = set()
        """Names of the legs on hold."""
        self._has_music = False
        """True if the caller hears music during a warm transfer."""
        self._background = False
        self._wanted_background: Background | None = None
        self.guests: RoomGuests = _NoGuests()
        self.elsewhere = ""
        """Name of the named room in which the call is. Empty: none. Meanwhile it has no second leg, no hold and no
        background."""
        self._timer_handle: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # --- the call's side ---------------------------------------------------------------------------------------------

    @property
    def possible(self) -> bool:
        """True if this gateway can call a person."""
        return not self.reach.missing and not self._call.joined_to and not self.elsewhere

    @property
    def joined(self) -> bool:
        """True while the caller talks with a person."""
        return self._course is not None and self._course.stage == "joined"

    @property
    def leg(self) -> str:
        """Session id of the second leg. Empty: there is none."""
        return "" if self._attempt is None else self._attempt.call_id

    @property
    def has_person(self) -> bool:
        """True while a person's leg is in the room: they hear the briefing, or talk with the caller."""
        return self._leg is not None

    @property
    def without_bot(self) -> bool:
        """True if the call lasts without a bot: a supervisor has taken over, or the caller is in a named room."""
        return self.guests.taken_over or bool(self.elsewhere)

    @property
    def used(self) -> bool:
        """True if the call's room is in use, or a person is called."""
        return self._room is not None or self._course is not None

    def let_in(self, leg: JoinableCall) -> None:
        """Let one of ``guests`` into the call's room; ``guests`` says what is heard."""
        self._open_room().enter(leg.call_id, leg.seat)
        self.arrange()

    def let_out(self, name: str) -> None:
        """Let one of ``guests`` out again."""
        if self._room is not None:
            self._room.leave(name)
        self.arrange()

    def begin(self, transfer: Transfer, *, by_operator: bool = False) -> None:
        """Call a person. ``owner`` learns of a failure or of the end; the application gets ``leg`` events.

        Args:
            by_operator: the target needs no entry in the list of allowed ones.
        """
        self._course = course = Course(transfer, longest_s=self._policy.longest_s)
        self._problem = ""
        self._own(self._place(course, by_operator))

    def on_digit(self, digit: str) -> None:
        """The caller has pressed a key."""
        if self.joined and self._leg is not None:
            self._pass_key(digit, self._leg.seat, self._leg.call_id)

    def close(self) -> None:
        """End everything, because the call is over."""
        for task in self._tasks:
            task.cancel()
        if self._handing_over and self._leg is not None:  # the person's leg is about to be replaced
            self._loop.call_later(_REPLACE_WAIT_S, partial(self._leg.end, "transferred", hang_up=True))
            self._leg = None
        if self._course is not None:
            self._take(self._course.caller_gone())
        if self._room is not None:
            self._room.close()
            self._room = None
        self.owner, self._hold_speech, self.guests = _Gone(), _ignore, _NoGuests()  # each refers back to this bridge

    # --- calling the person ------------------------------------------------------------------------------------------

    async def _place(self, course: Course, by_operator: bool) -> None:
        call, shown = self._call, self._policy.shows_caller
        target = course.transfer.target
        order = CallOrder(
            target=target,
            route=call.route,
            carrier=self._legs.carrier_of(call.transport, target),
            parent_call_sid=call.call_sid,
            second_leg=SecondLeg(
                joined_to=call.correlation_id,
                shown_number=call.from_ if shown else "",
                shown_name=call.caller_name if shown else "",
                diverted_from=call.to if shown else "",
                own_number=call.from_ if call.direction == "outbound" else call.to,
                by_operator=by_operator,
                on_progress=partial(self._progress, course),
            ),
        )
        try:
            attempt = await self._legs.place(order, self)
        except Rejected as exc:
            log.info("second leg refused", extra={"call": call.call_id, "why": exc.code})
            self._over()
            self.owner.bridge_failed(str(exc), exc.code)
            return
        if course is not self._course:  # over meanwhile
            self._legs.cancel(attempt)
            return
        self._attempt = attempt
        if course.transfer.warm is not None and self._policy.hold_clip:
            self._own(self._play_music(course))
        self._take(course.placed(self._now()))
        self._progress(course, attempt)

    def _progress(self, course: Course, attempt: Attempt) -> None:
        """Take a new state of the attempt."""
        if course is not self._course:
            return
        self._attempt = attempt
        if attempt.state in ("ringing", "early_media"):
            self._take(course.ringing())
        elif attempt.state == "answered":
            self._take(course.answered(self._now()))
        elif attempt.state == "failed":
            self._legs.forget(attempt.call_id)
            log.info("second leg not reached", extra={"call": self._call.call_id, "why": attempt.reason})
            self._problem = f"{attempt.status or ''} {attempt.reason}".strip()
            self._take(course.failed(_EVENTS.get(attempt.reason, "failed")), attempt.cause)

    def leg_began(self, leg: JoinableCall) -> None:
        """The person's session exists: the caller hears its early media, or the person."""
        course = self._course
        if course is None:
            leg.end("cancelled", hang_up=True)
            return
        self._leg = leg
        room = self._open_room()
        room.stop(self._ringback)
        room.enter(leg.call_id, leg.seat)
        self._take(course.began(self._now()))
        self.arrange()

    def leg_told(self, leg: JoinableCall, message: Outbound) -> None:
        """Pass on the person's words and keys; note the end of the briefing and of the leg."""
        course = self._course
        if leg is not self._leg or course is None:
            return
        match message:
            case Prompt():
                self._tell(OfLeg(leg=leg.call_id, message=message))
                if message.last:
                    self._take(course.said(message.voice_prompt, self._now()))
            case Dtmf():
                self._tell(OfLeg(leg=leg.call_id, message=message))
                if self.joined:
                    self._pass_key(message.digit, self._seat, self._call.call_id)
                else:
                    self._take(course.pressed(message.digit, self._now()))
            case TurnEvent(turn=turn, event="finished" | "interrupted" | "failed") if turn == _BRIEFING:
                self._take(course.briefed(self._now()))
            case Ended():
                cause = message.cause
                if cause.by in ("caller", None):
                    cause = replace(cause, by="agent")
                if self._room is not None:
                    self._room.leave(leg.call_id)
                    self._held.discard(leg.call_id)
                self._leg = None
                self._problem = "the person has hung up"
                self._take(course.moved() if self._handing_over else course.hung_up(), cause)

    def take_off(self, message: Leave) -> None:
        """End the person's leg; the caller is with the bot again."""
        course = self._course
        if course is None or message.leg not in ("", self.leg):
            self._tell(Error(description=f"leave: no leg {message.leg[:40]!r}", code="unknown_leg", field="leg"))
            return
        self._take(course.taken_off(), _BY_MANAGER)

    # --- the course --------------------------------------------------------------------------------------------------

    def _take(self, step: Step, cause: EndCause = UNKNOWN) -> None:
        """Carry out a step of the course."""
        course = self._course
        if step.tell is not None:
            log.info("second leg", extra={"call": self._call.call_id, "leg": self.leg, "event": step.tell})
            self._count(step.tell)
            self._tell(LegEvent(leg=self.leg, event=step.tell, cause=cause))
        for act in step.acts:
            match act:
                case BridgeAct.RING:
                    self._let_ring()
                case BridgeAct.BRIEF:
                    self._brief()
                case BridgeAct.JOIN:
                    self._join()
                case BridgeAct.CANCEL:
                    if self._attempt is not None:
                        self._legs.cancel(self._attempt)
                case BridgeAct.RELEASE:
                    if self._leg is not None:
                        self._leg.end(_REASONS.get(step.acts[-1], "cancelled"), hang_up=True)
                case _:
                    self._over()
                    self._finish(act, course, step.tell, cause)
                    return
        self._set_timer()

    def _finish(self, act: BridgeAct, course: Course | None, event: LegEventName | None, cause: EndCause) -> None:
        transfer = None if course is None else course.transfer
        match act:
            case BridgeAct.FAIL:
                self.owner.bridge_failed(f"the target was not reached: {self._problem or event}", "transfer_failed")
            case BridgeAct.RETURN:
                self.owner.bridge_over(cause, returns=True)
            case BridgeAct.FINISH:
                self.owner.bridge_over(cause, returns=transfer is not None and transfer.on_hangup == "return")
            case BridgeAct.TOO_LONG:
                self.owner.bridge_too_long()
            case BridgeAct.MOVED:
                self.owner.bridge_moved(self._conference)

    def _let_ring(self) -> None:
        """Let the caller hear that the phone rings. In a warm transfer the route's clip takes the ringing's place."""
        if self._course is None or self._course.transfer.warm is None or not self._policy.hold_clip:
            self._open_room().play(self._ringback, PlayedSource(ringback(), RINGBACK_HZ), self._call.call_id)

    async def _play_music(self, course: Course) -> None:
        """Play the route's clip until both are joined. It begins with the call: a phone may answer without ringing."""
        clip = await self._decoded(self._policy.hold_clip)
        if clip is not None and course is self._course and course.stage != "joined":
            room = self._open_room()
            clip.become_background(self._seat.voice, gain_db=0.0, duck_db=_MUSIC_DUCK_DB)
            self._has_music = True
            room.play(self._music, clip, self._call.call_id)
            self.arrange()

    def _stop_music(self) -> None:
        self._has_music = False
        if self._room is not None:
            self._room.stop(self._music)

    def _brief(self) -> None:
        """Speak the briefing to the person. Keys cut it; words are heard meanwhile."""
        leg, course = self._leg, self._course
        if leg is None or course is None or course.transfer.warm is None:
            return
        self.arrange()
        if course.transfer.warm.briefing.strip():
            leg.on_message(ConfigChange(report_input_during_agent_speech="any"))
            leg.on_message(Text(token=course.transfer.warm.briefing, last=True, turn=_BRIEFING, interruptible="dtmf"))
        else:
            self._take(course.briefed(self._now()))

    def _join(self) -> None:
        """Let the caller and the person hear each other."""
        leg, course = self._leg, self._course
        if leg is None or course is None:
            return
        self._stop_music()
        log.info("calls joined", extra={"call": self._call.call_id, "leg": leg.call_id})
        self.arrange()
        # The person's session may be in the middle of handling the key that has decided.
        self._loop.call_soon(self._follow_up, course, leg)

    def _follow_up(self, course: Course, leg: JoinableCall) -> None:
        """Cut the rest of the briefing; in mode ``refer``, let the caller's peer or carrier join the two. The bridge
        stays if that is refused."""
        if course is not self._course or self._attempt is None:
            return
        leg.on_message(Cancel())
        if course.transfer.mode != "refer" or course.transfer.warm is None:
            return
        if self._attempt.transport != "sip":
            self._conference = f"talkspurt-{self._call.call_id}"
            leg.move(self._conference)
            self._take(course.moved())
            return
        try:
            self._handing_over = self._seat.transfer(leg.call_id) is TransferStart.UNDER_WAY
        except Rejected as exc:
            log.info("bridge stays", extra={"call": self._call.call_id, "why": exc.code})

    def handed_over(self, problem: str, status: int) -> None:
        """The peer has joined the two, or a ``problem`` says why not."""
        handing_over, self._handing_over = self._handing_over, False
        if self._course is None or not handing_over:
            return
        if problem or status:
            log.info("bridge stays", extra={"call": self._call.call_id, "why": problem or status})
        else:
            self._take(self._course.moved())

    def _set_timer(self) -> None:
        if self._timer_handle is not None:
            self._timer_handle.cancel()
            self._timer_handle = None
        course = self._course
        if course is not None and course.deadline is not None:
            delay_s = max(0.0, course.deadline - self._now())
            self._timer_handle = self._loop.call_later(delay_s, lambda: self._take(course.expire(self._now())))

    def _over(self) -> None:
        """Forget the second leg. The caller is alone with the bot."""
        leg = self._leg
        self._course, self._attempt, self._leg = None, None, None
        self._set_timer()
        self._handing_over = False
        self._stop_music()
        if self._room is not None:
            self._room.stop(self._ringback)
            if leg is not None:
                self._room.leave(leg.call_id)
                self._held.discard(leg.call_id)
        self.arrange()

    def _pass_key(self, digit: str, seat: Seat, name: str) -> None:
        """Give a key of one side to the other, as an event or as a tone."""
        if not self._policy.passes_keys or name in self._held or self._room is None:
            return
        if not (seat.carries_dtmf(digit) and seat.send_dtmf(digit)):
            pcm = to_int16(tones(digit, _TONE_HZ))
            self._room.play(f"{name}:key", PlayedSource(pcm, _TONE_HZ, loop=False), name)

    # --- hold and background -----------------------------------------------------------------------------------------

    def hold(self, message: HoldLeg) -> None:
        """Put a leg on hold."""
        name = self._named(message.leg, "holdLeg")
        if not name:
            return
        self._held.add(name)
        if name == self._call.call_id:
            self._hold_speech(True)
        self.arrange()
        source = self._policy.hold_clip if message.source is None else message.source
        if source:
            self._own(self._play_hold(name, source))
        elif self._room is not None:
            self._room.stop(_hold_of(name))

    async def _play_hold(self, name: str, source: str) -> None:
        clip = await self._decoded(source)
        if clip is not None and name in self._held and self._room is not None:
            self._room.play(_hold_of(name), clip, name)

    def resume(self, message: ResumeLeg) -> None:
        """End the hold of a leg."""
        name = self._named(message.leg, "resumeLeg")
        if not name:
            return
        self._held.discard(name)
        if self._room is not None:
            self._room.stop(_hold_of(name))
        self.arrange()
        if name == self._call.call_id:
            self._hold_speech(False)

    def _named(self, leg: str, kind: str) -> str:
        """Return a leg's name in the room. Empty: there is no such leg, and the application has received an error."""
        if self._is_elsewhere(kind):
            return ""
        if leg in ("", self._call.call_id):
            return self._call.call_id
        if self._leg is not None and leg == self._leg.call_id:
            return leg
        self._tell(Error(description=f"{kind}: no leg {leg[:40]!r}", code="unknown_leg", field="leg"))
        return ""

    def _is_elsewhere(self, kind: str) -> bool:
        """Return True if the call is in a named room; the application has received an error."""
        if self.elsewhere:
            self._tell(
                Error(description=f"{kind}: the call is in the room {self.elsewhere}", code="in_room", field="type")
            )
        return bool(self.elsewhere)

    def background(self, message: Background) -> None:
        """Play a sound under the bot's voice, or stop it."""
        if self._is_elsewhere("background"):
            return
        self._wanted_background = message if message.source else None
        if message.source:
            self._own(self._play_background(message))
        elif self._background:
            self._background = False
            if self._room is not None:
                self._room.stop(self._background_name)
            self.arrange()

    async def _play_background(self, message: Background) -> None:
        clip = await self._decoded(message.source)
        if clip is None or self._wanted_background is not message or self.elsewhere:
            return
        room = self._open_room()
        clip.become_background(self._seat.voice, gain_db=message.level, duck_db=message.duck)
        self._background = True
        room.play(self._background_name, clip, self._call.call_id)
        self.arrange()

    async def _decoded(self, source: str) -> PlayedSource | None:
        try:
            pcm, rate = await self._clips.samples(source, route=self._call.route, call_id=self._call.call_id)
        except ClipError as exc:
            self._tell(Error(description=str(exc), code="CLIP", field="source"))
            return None
        return PlayedSource(pcm, rate)

    # --- the room ----------------------------------------------------------------------------------------------------

    def _open_room(self) -> Room:
        """Return the call's room, which has the caller in it."""
        if self._room is None:
            self._room = Room(self._timer, pacing_error=self._pacing_error)
            self._room.enter(self._call.call_id, self._seat)
        return self._room

    def arrange(self) -> None:
        """Let each leg hear what the present state asks for, and give up a room that no one needs."""
        caller, leg = self._call.call_id, self._leg
        if self._held:
            self._open_room()
        room = self._room
        if room is None:
            return
        if self._course is None and not self._held and not self._background and not self.guests.present:
            room.close()
            self._room = None
            return
        mixer = room.mixer
        caller_free = caller not in self._held
        mixer.set_heard(caller, voice_of(caller), caller_free and not self.guests.taken_over)
        if self._background:
            mixer.set_heard(caller, self._background_name, caller_free and not self.joined)
        if self._has_music:
            mixer.set_heard(caller, self._music, caller_free)
        person = "" if leg is None else leg.call_id
        self.guests.arrange(mixer, person, caller_free=caller_free, person_free=person not in self._held)
        if leg is None:
            return
        other = leg.call_id
        both = caller_free and other not in self._held
        warm = self._course is not None and self._course.transfer.warm is not None
        mixer.set_heard(caller, other, both and (self.joined or not warm))
        mixer.set_heard(other, caller, both and self.joined)
        mixer.set_heard(other, voice_of(caller), both and self.joined)
        mixer.set_heard(other, voice_of(other), other not in self._held)

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _hold_of(name: str) -> str:
    return f"{name}:hold"
