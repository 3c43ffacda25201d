"""The course of one bridge: from the call to a person, by the briefing of a warm transfer, to the end. Pure: time is an
argument.

=========  ==========================================================================================================
stage      ends with
=========  ==========================================================================================================
calling    the answer (``briefing`` if warm, else ``joined``); busy, declined, failed; no answer within ``ringTimeoutS``
briefing   the person's key or word (``joined``, or over if declined); no decision within ``acceptTimeoutS``; hang-up
joined     the person's or the caller's hang-up; the longest time
over
=========  ==========================================================================================================

In every stage the application may take the person off, and the caller may hang up. Each stage has one way out for each
input, and every input after the end has no effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from gateway.seams.messages import LegEventName, Transfer

Stage = Literal["calling", "briefing", "joined", "over"]

ACCEPT_TIMEOUT_S = 30.0
"""Longest wait for the person's decision after the briefing, if the transfer names none."""

_BRIEFING_LONGEST_S = 120.0
"""Longest briefing. Its end is reported; this holds if the report is lost."""

_SESSION_WAIT_S = 10.0
"""Longest time between the person's answer and their session."""

_CJK = 0x2E80
"""Scripts from here on have no spaces between words."""

_PUNCTUATION = re.compile(r"[^\w*#+']+")


class BridgeAct(Enum):
    """One thing that the bridge does. The last six end the course."""

    RING = auto()
    """Let the caller hear that the phone rings."""
    BRIEF = auto()
    """Speak the briefing to the person."""
    JOIN = auto()
    """Let the caller and the person hear each other."""
    CANCEL = auto()
    """Give up the attempt, which is not answered."""
    RELEASE = auto()
    """End the person's leg."""
    FAIL = auto()
    """Return the caller to the bot: the transfer has failed."""
    RETURN = auto()
    """Return the caller to the bot, which asked for it."""
    FINISH = auto()
    """End as ``onHangup`` says: the person has hung up."""
    TOO_LONG = auto()
    """End the call: the longest time is over."""
    MOVED = auto()
    """End the call here: the peer or the carrier has joined the two."""
    GONE = auto()
    """Forget all: the call is over."""


ENDINGS = frozenset(
    {BridgeAct.FAIL, BridgeAct.RETURN, BridgeAct.FINISH, BridgeAct.TOO_LONG, BridgeAct.MOVED, BridgeAct.GONE}
)


@dataclass(frozen=True, slots=True)
class Step:
    """An event for the application, if any, and then what the bridge does."""

    tell: LegEventName | None = None
    acts: tuple[BridgeAct, ...] = ()


_NOTHING = Step()


class Course:
    """The course of one bridge.

    Args:
        transfer: the application's request.
        longest_s: longest time for which two calls are joined.
    """

    def __init__(self, transfer: Transfer, *, longest_s: float) -> None:
        self.transfer = transfer
        self.stage: Stage = "calling"
        self.deadline: float | None = None
        """Time at which ``expire`` is to be called."""
        self._longest_s = longest_s
        self._rung = self._answered = self._has_leg = self._briefed = False

    # --- the attempt -------------------------------------------------------------------------------------------------

    def placed(self, now: float) -> Step:
        """The person is called."""
        if self.stage == "calling" and not self._answered and self.transfer.ring_timeout_s is not None:
            self.deadline = now + self.transfer.ring_timeout_s
        return _NOTHING

    def ringing(self) -> Step:
        """The person's phone rings."""
        if self.stage != "calling" or self._rung or self._answered:
            return _NOTHING
        self._rung = True
        return Step("ringing", () if self._has_leg else (BridgeAct.RING,))

    def answered(self, now: float) -> Step:
        """The person has answered."""
        if self.stage != "calling" or self._answered:
            return _NOTHING
        self._answered = True
        self.deadline = now + _SESSION_WAIT_S
        return self._meet(now)

    def failed(self, event: LegEventName) -> Step:
        """The person was not reached."""
        return self._end(event, BridgeAct.FAIL) if self.stage == "calling" else _NOTHING

    # --- the person's leg --------------------------------------------------------------------------------------------

    def began(self, now: float) -> Step:
        """The person's session exists, with early media or after the answer."""
        if self.stage != "calling" or self._has_leg:
            return _NOTHING
        self._has_leg = True
        return self._meet(now)

    def _meet(self, now: float) -> Step:
        if not (self._answered and self._has_leg):
            return _NOTHING
        if self.transfer.warm is None:
            self.stage, self.deadline = "joined", now + self._longest_s
            return Step("answered", (BridgeAct.JOIN,))
        self.stage, self.deadline = "briefing", now + _BRIEFING_LONGEST_S
        return Step("answered", (BridgeAct.BRIEF,))

    def briefed(self, now: float) -> Step:
        """The briefing has ended in any way: the wait for the decision begins."""
        if self.stage == "briefing" and not self._briefed:
            self._briefed = True
            wait_s = self.transfer.accept_timeout_s
            self.deadline = now + (ACCEPT_TIMEOUT_S if wait_s is None else wait_s)
        return _NOTHING

    def pressed(self, key: str, now: float) -> Step:
        """The person has pressed a key."""
        warm = self.transfer.warm
        if self.stage != "briefing" or warm is None:
            return _NOTHING
        return self._decide(key in warm.accept, key in warm.decline, now)

    def said(self, words: str, now: float) -> Step:
        """The person has said something, whole."""
        warm = self.transfer.warm
        if self.stage != "briefing" or warm is None:
            return _NOTHING
        return self._decide(begins_with(words, warm.accept), begins_with(words, warm.decline), now)

    def _decide(self, accepts: bool, declines: bool, now: float) -> Step:
        if declines:
            return self._end("declined", BridgeAct.RELEASE, BridgeAct.FAIL)
        if not accepts:
            return _NOTHING
        self.stage, self.deadline = "joined", now + self._longest_s
        return Step("accepted", (BridgeAct.JOIN,))

    def hung_up(self) -> Step:
        """The person's session has ended."""
        if self.stage == "joined":
            return self._end("hangup", BridgeAct.FINISH)
        if self.stage == "briefing":
            return self._end("hangup", BridgeAct.FAIL)
        if self.stage == "calling" and self._answered:
            return self._end("failed", BridgeAct.FAIL)
        self._has_leg = False  # early media has ended; the attempt's own end follows
        return _NOTHING

    # --- the others --------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> Step:
        """The time may have come; see ``deadline``."""
        if self.deadline is None or now < self.deadline:
            return _NOTHING
        match self.stage:
            case "calling":
                ended = self._end("failed" if self._answered else "noAnswer", *self._give_up(), BridgeAct.FAIL)
            case "briefing":
                ended = self._end("noAnswer", BridgeAct.RELEASE, BridgeAct.FAIL)
            case _:
                ended = self._end(None, BridgeAct.RELEASE, BridgeAct.TOO_LONG)
        return ended

    def taken_off(self) -> Step:
        """The application takes the person off."""
        return _NOTHING if self.stage == "over" else self._end("hangup", *self._give_up(), BridgeAct.RETURN)

    def moved(self) -> Step:
        """The peer or the carrier has joined the two."""
        return self._end(None, BridgeAct.RELEASE, BridgeAct.MOVED) if self.stage == "joined" else _NOTHING

    def caller_gone(self) -> Step:
        """The caller's call is over."""
        return _NOTHING if self.stage == "over" else self._end(None, *self._give_up(), BridgeAct.GONE)

    def _give_up(self) -> tuple[BridgeAct, ...]:
        release = (BridgeAct.RELEASE,) if self._has_leg else ()
        return release if self._answered else (*release, BridgeAct.CANCEL)

    def _end(self, tell: LegEventName | None, *acts: BridgeAct) -> Step:
        self.stage, self.deadline = "over", None
        return Step(tell, acts)


def begins_with(words: str, phrases: tuple[str, ...]) -> bool:
    """Return True if words begin with one of the phrases, whole words only. Case and punctuation do not count."""
    said = _plain(words)
    for phrase in map(_plain, phrases):
        if phrase and said.startswith(phrase):
            rest = said[len(phrase) :]
            if not rest or rest[0] == " " or ord(phrase[-1]) >= _CJK:
                return True
    return False


def _plain(words: str) -> str:
    return _PUNCTUATION.sub(" ", words.replace("’", "'")).strip().casefold()
