"""Reliable provisional responses, both sides (RFC 3262): our 18x is repeated until its PRACK, and each reliable 18x of
the peer is acknowledged once. Pure: times are seconds of one monotonic clock."""

from __future__ import annotations

import re
import secrets
from collections import deque
from dataclasses import dataclass

from sip_bridge.dialog.effects import Effect, Respond
from sip_bridge.dialog.transaction import Key
from sip_bridge.errors import SipProtocolError
from sip_bridge.local import HeaderItems
from sip_bridge.message.sip import Request, Response

TAG = "100rel"
"""The option tag in Supported and Require."""


@dataclass(slots=True)
class _Unacknowledged:
    key: Key
    response: Response
    rack: tuple[int, int, str]
    pause_s: float
    repeat_at: float
    give_up_at: float


class ReliableProvisional:
    """Sends the provisional responses of one INVITE reliably, one at a time.

    Args:
        effects: receives the repetitions.
        t1_s: T1 of RFC 3261. The pause begins with it and doubles.
    """

    def __init__(self, effects: deque[Effect], *, t1_s: float) -> None:
        self._effects = effects
        self._t1_s = t1_s
        self._number = secrets.randbelow(2**31 - 1)
        self._waiting: _Unacknowledged | None = None
        self._crossed: tuple[int, int, str] | None = None
        """RAck of the response that still waited when the final response was sent."""

    @property
    def describes(self) -> bool:
        """True while a response with a session description waits for its PRACK. Until then, no 2xx may be sent."""
        return self._waiting is not None and bool(self._waiting.response.body)

    def headers(self) -> HeaderItems:
        """Return the headers of the next response (section 3)."""
        self._number += 1
        return [("Require", TAG), ("RSeq", str(self._number))]

    def begin(self, key: Key, response: Response, *, now: float) -> None:
        """Wait for the PRACK of a response that was just sent."""
        rack = (self._number, response.cseq.number, response.cseq.method)
        self._waiting = _Unacknowledged(
            key, response, rack, self._t1_s, repeat_at=now + self._t1_s, give_up_at=now + 64 * self._t1_s
        )

    def take(self, prack: Request) -> bool:
        """Return True if a PRACK acknowledges the response that waits, and stop repeating it. A PRACK that has crossed
        the final response is taken too (section 3).

        Raises:
            SipProtocolError: RAck is missing or cannot be read.
        """
        text = prack.headers.get("RAck") or ""
        found = re.fullmatch(r"\s*([0-9]{1,10})\s+([0-9]{1,10})\s+(\S+)\s*", text)
        if found is None:
            raise SipProtocolError(f"RAck is {text[:40]!r}, expected two numbers and a method (RFC 3262 section 7.2)")
        rack = int(found[1]), int(found[2]), found[3]
        if self._waiting is not None and self._waiting.rack == rack:
            self._waiting = None
        elif self._crossed == rack:
            self._crossed = None
        else:
            return False
        return True

    def deadline(self) -> float | None:
        """Return the time of the next ``tick``. None: nothing waits."""
        return min(self._waiting.repeat_at, self._waiting.give_up_at) if self._waiting else None

    def tick(self, *, now: float) -> bool:
        """Repeat the response if due. True: no PRACK came within 64*T1, and the wait is over."""
        waiting = self._waiting
        if waiting is None:
            return False
        if waiting.give_up_at <= now:
            self._waiting = None
            return True
        if waiting.repeat_at <= now:
            self._effects.append(Respond(waiting.key, waiting.response))
            waiting.pause_s *= 2
            waiting.repeat_at = now + waiting.pause_s
        return False

    def stop(self) -> None:
        """Stop waiting, since the INVITE has its final response."""
        if self._waiting is not None:
            self._crossed = self._waiting.rack
        self._waiting = None


class Acknowledged:
    """The reliable provisional responses of the peer to one INVITE that we have acknowledged, by the fork's tag."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def rack(self, response: Response) -> str | None:
        """Return RAck for a response. None: it is not reliable, is a repetition, or came before one that is missing
        (section 4)."""
        text = response.headers.get("RSeq") or ""
        if TAG not in response.headers.tokens("Require") or not re.fullmatch("[0-9]{1,10}", text):
            return None
        number, before = int(text), self._numbers.get(response.to.tag)
        if before is not None and number != before + 1:
            return None
        self._numbers[response.to.tag] = number
        return f"{number} {response.cseq}"
