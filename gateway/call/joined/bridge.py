"""The bridge of one call: the gateway calls a person, and joins the caller with them. Also what a single leg hears
beside the bot: hold and background.

A bridge is called, then joined, then over. While the person's phone rings, the caller hears its ringing or its early
media. Joined people go on talking when the application or the engine is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from gateway.call.joined.second_legs import JoinableCall, SecondLegs
from gateway.call.joined.sounds import RINGBACK_HZ, ClipSamples, ringback
from gateway.errors import ClipError, Rejected
from gateway.histogram import Histogram
from gateway.media.ticker import Ticker
from gateway.mixing.room import Room
from gateway.mixing.seat import Seat, voice_of
from gateway.mixing.sources import PlayedSource
from gateway.seams.end_cause import EndCause
from gateway.seams.leg import CallInfo
from gateway.seams.messages import (
    Background,
    Dtmf,
    Ended,
    Error,
    HoldLeg,
    LegEvent,
    LegEventName,
    OfLeg,
    Outbound,
    Prompt,
    ResumeLeg,
    Transfer,
)
from gateway.seams.originate import Attempt, CallOrder, SecondLeg
from voicecodecs.dtmf import tones
from voicecodecs.pcm import to_int16

log = logging.getLogger(__name__)

_TONE_HZ = 8000

_EVENTS: dict[str, LegEventName] = {"busy": "busy", "no_answer": "noAnswer", "declined": "declined"}
"""Event of a failed attempt by its reason; every other one is ``failed``."""


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
    ) -> None:
        self._call = call
        self._seat = seat
        self._legs = legs
        self._clips = clips
        self._timer = timer
        self._policy = policy
        self._tell = tell
        self._hold_speech = hold_speech
        self._pacing_error = pacing_error
        self._loop = asyncio.get_running_loop()
        self._room: Room | None = None
        self._state: Literal["none", "calling", "joined"] = "none"
        self._transfer: Transfer | None = None
        self._attempt: Attempt | None = None
        self._leg: JoinableCall | None = None
        self._told_ringing = False
        self._rang_out = False
        self._answered = False
        self._held: set[str] = set()
        """Names of the legs on hold."""
        self._background = False
        self._wanted_background: Background | None = None
        self._timer_handle: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # --- the call's side ---------------------------------------------------------------------------------------------

    @property
    def possible(self) -> bool:
        """True if this gateway can call a person."""
        return self._legs.originator is not None and not self._call.joined_to

    @property
    def joined(self) -> bool:
        """True while the caller talks with a person."""
        return self._state == "joined"

    @property
    def leg(self) -> str:
        """Session id of the second leg. Empty: there is none."""
        return "" if self._attempt is None else self._attempt.call_id

    def begin(self, transfer: Transfer, *, by_operator: bool = False) -> None:
        """Call a person. ``owner`` learns of a failure or of the end; the application gets ``leg`` events.

        Args:
            by_operator: the target needs no entry in the list of allowed ones.
        """
        self._state, self._transfer = "calling", transfer
        self._told_ringing = self._rang_out = self._answered = False
        self._own(self._place(transfer, by_operator))

    def on_digit(self, digit: str) -> None:
        """The caller has pressed a key."""
        if self.joined and self._leg is not None:
            self._pass_key(digit, self._leg.seat, self._leg.call_id)

    def close(self) -> None:
        """End everything, because the call is over."""
        self._closed = True
        self._stop_timer()
        for task in self._tasks:
            task.cancel()
        attempt, leg = self._attempt, self._leg
        self._attempt = self._leg = None
        self._state = "none"
        if self._room is not None:
            self._room.close()
            self._room = None
        if leg is not None:
            leg.end("hangup", hang_up=True)
        if attempt is not None and not self._answered:
            self._legs.cancel(attempt)

    # --- calling the person ------------------------------------------------------------------------------------------

    async def _place(self, transfer: Transfer, by_operator: bool) -> None:
        call, shown = self._call, self._policy.shows_caller
        order = CallOrder(
            target=transfer.target,
            route=call.route,
            parent_call_sid=call.call_sid,
            second_leg=SecondLeg(
                joined_to=call.correlation_id,
                shown_number=call.from_ if shown else "",
                shown_name=call.caller_name if shown else "",
                diverted_from=call.to if shown else "",
                by_operator=by_operator,
                on_progress=self._progress,
            ),
        )
        try:
            attempt = await self._legs.place(order, self)
        except Rejected as exc:
            log.info("second leg refused", extra={"call": call.call_id, "why": exc.code})
            self._over()
            self.owner.bridge_failed(str(exc), exc.code)
            return
        self._attempt = attempt
        if transfer.ring_timeout_s is not None:
            self._timer_handle = self._loop.call_later(transfer.ring_timeout_s, self._ring_out)
        self._progress(attempt)

    def _ring_out(self) -> None:
        if self._attempt is not None and not self._answered:
            self._rang_out = True
            self._legs.cancel(self._attempt)

    def _progress(self, attempt: Attempt) -> None:
        """Take a new state of the attempt."""
        if self._closed or self._state == "none" or (self._attempt is not None and attempt is not self._attempt):
            return
        if attempt.state in ("ringing", "early_media") and not self._told_ringing:
            self._told_ringing = True
            self._tell(LegEvent(leg=attempt.call_id, event="ringing"))
            if self._leg is None:
                self._open_room().play(self._ringback, PlayedSource(ringback(), RINGBACK_HZ), self._call.call_id)
        elif attempt.state == "answered" and not self._answered:
            self._answered = True
            self._stop_timer()
            self._join()
        elif attempt.state == "failed" and not self._answered:
            self._not_reached(attempt)

    def _not_reached(self, attempt: Attempt) -> None:
        self._legs.forget(attempt)
        event: LegEventName = "noAnswer" if self._rang_out else _EVENTS.get(attempt.reason, "failed")
        log.info("second leg not reached", extra={"call": self._call.call_id, "why": attempt.reason})
        self._tell(LegEvent(leg=attempt.call_id, event=event, cause=attempt.cause))
        why = "no_answer" if self._rang_out else attempt.reason
        self._over()
        self.owner.bridge_failed(f"the target was not reached: {attempt.status} {why}", "transfer_failed")

    def leg_began(self, leg: JoinableCall) -> None:
        """The person's session exists: the caller hears its early media, or the person."""
        if self._closed or self._state == "none":
            leg.end("cancelled", hang_up=True)
            return
        self._leg = leg
        room = self._open_room()
        room.stop(self._ringback)
        room.enter(leg.call_id, leg.seat)
        self._join()

    def _join(self) -> None:
        """Join both legs, once the person has answered and the session exists."""
        if self._answered and self._leg is not None and self._state == "calling":
            self._state = "joined"
            self._timer_handle = self._loop.call_later(self._policy.longest_s, self._too_long)
            log.info("calls joined", extra={"call": self._call.call_id, "leg": self._leg.call_id})
            self._tell(LegEvent(leg=self._leg.call_id, event="answered"))
        self._arrange()

    def _too_long(self) -> None:
        leg = self._leg
        self._over()
        if leg is not None:
            leg.end("too_long", hang_up=True)
        self.owner.bridge_too_long()

    def leg_told(self, message: Outbound) -> None:
        """Pass on the person's words and keys; note the end of the leg."""
        leg = self._leg
        if leg is None:
            return
        match message:
            case Prompt():
                self._tell(OfLeg(leg=leg.call_id, message=message))
            case Dtmf():
                self._tell(OfLeg(leg=leg.call_id, message=message))
                if self.joined:
                    self._pass_key(message.digit, self._seat, self._call.call_id)
            case Ended():
                self._leg_ended(leg, message)

    def _leg_ended(self, leg: JoinableCall, ended: Ended) -> None:
        if not self.joined:
            # Early media has ended; the attempt's own end follows.
            self._leg = None
            if self._room is not None:
                self._room.leave(leg.call_id)
            return
        transfer = self._transfer
        cause = ended.cause
        if cause.by in ("caller", None):
            cause = replace(cause, by="agent")
        self._tell(LegEvent(leg=leg.call_id, event="hangup", cause=cause))
        self._over()
        self.owner.bridge_over(cause, returns=transfer is not None and transfer.on_hangup == "return")

    def _over(self) -> None:
        """Forget the second leg. The caller is alone with the bot."""
        self._stop_timer()
        leg = self._leg
        self._state, self._transfer, self._attempt, self._leg = "none", None, None, None
        if self._room is not None:
            self._room.stop(self._ringback)
            if leg is not None:
                self._room.leave(leg.call_id)
                self._held.discard(leg.call_id)
        self._arrange()

    def _stop_timer(self) -> None:
        if self._timer_handle is not None:
            self._timer_handle.cancel()
            self._timer_handle = None

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
        self._arrange()
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
        self._arrange()
        if name == self._call.call_id:
            self._hold_speech(False)

    def _named(self, leg: str, kind: str) -> str:
        """Return a leg's name in the room. Empty: there is no such leg, and the application has received an error."""
        if leg in ("", self._call.call_id):
            return self._call.call_id
        if self._leg is not None and leg == self._leg.call_id:
            return leg
        self._tell(Error(description=f"{kind}: no leg {leg[:40]!r}", code="unknown_leg", field="leg"))
        return ""

    def background(self, message: Background) -> None:
        """Play a sound under the bot's voice, or stop it."""
        self._wanted_background = message if message.source else None
        if message.source:
            self._own(self._play_background(message))
        elif self._background:
            self._background = False
            if self._room is not None:
                self._room.stop(self._background_name)
            self._arrange()

    async def _play_background(self, message: Background) -> None:
        clip = await self._decoded(message.source)
        if clip is None or self._wanted_background is not message:
            return
        room = self._open_room()
        clip.become_background(self._seat.voice, gain_db=message.level, duck_db=message.duck)
        self._background = True
        room.play(self._background_name, clip, self._call.call_id)
        self._arrange()

    async def _decoded(self, source: str) -> PlayedSource | None:
        try:
            pcm, rate = await self._clips.samples(source)
        except ClipError as exc:
            self._tell(Error(description=str(exc), code="CLIP", field="source"))
            return None
        return PlayedSource(pcm, rate)

    # --- the room ----------------------------------------------------------------------------------------------------

    @property
    def _ringback(self) -> str:
        return f"{self._call.call_id}:ringback"

    @property
    def _background_name(self) -> str:
        return f"{self._call.call_id}:background"

    def _open_room(self) -> Room:
        """Return the call's room, which has the caller in it."""
        if self._room is None:
            self._room = Room(self._timer, pacing_error=self._pacing_error)
            self._room.enter(self._call.call_id, self._seat)
        return self._room

    def _arrange(self) -> None:
        """Let each leg hear what the present state asks for, and give up a room that no one needs."""
        caller, leg = self._call.call_id, self._leg
        if self._held:
            self._open_room()
        room = self._room
        if room is None:
            return
        if self._state == "none" and not self._held and not self._background:
            room.close()
            self._room = None
            return
        mixer = room.mixer
        caller_free = caller not in self._held
        mixer.set_heard(caller, voice_of(caller), caller_free)
        if self._background:
            mixer.set_heard(caller, self._background_name, caller_free and not self.joined)
        if leg is None:
            return
        other = leg.call_id
        both = caller_free and other not in self._held
        mixer.set_heard(caller, other, both)
        mixer.set_heard(other, caller, both and self.joined)
        mixer.set_heard(other, voice_of(caller), both and self.joined)
        mixer.set_heard(other, voice_of(other), other not in self._held)

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _hold_of(name: str) -> str:
    return f"{name}:hold"
