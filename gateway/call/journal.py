"""The history of one call for the call log: what was said and heard, when, and how long the caller waited.

The call's statistics and messages feed the journal, which decides nothing. Time is an argument. Pure.
"""

from __future__ import annotations

from typing import Literal

from gateway.call.turn_taking.turn import FirstPacket, Place, Turn
from gateway.seams.call_record import (
    CallRecord,
    Entry,
    Fault,
    HeardWords,
    Listened,
    Pressed,
    Progressed,
    Said,
    SupervisorEvent,
    SupervisorMoved,
    WhoAnswered,
)
from gateway.seams.end_cause import EndCause
from gateway.seams.leg import CallInfo
from gateway.seams.messages import Answered, AnsweredBy, Call, Dtmf, Error, Outbound, Prompt

ENTRIES = 2_000
"""Most entries of a call; later ones are only counted."""

CHARS = 200_000
"""Most characters of a call; later entries are kept without text."""


class _Measured:
    """Measurements of a turn that has not ended."""

    def __init__(self) -> None:
        self.started_at: float | None = None
        self.first_packet: FirstPacket | None = None
        self.caller_stopped_at: float | None = None
        self.gaps = 0
        self.gap_s = 0.0


class Journal:
    """The journal of one call.

    Args:
        keeps_text: keep words, error descriptions and digits.
        begun: start of the call in seconds, on the clock of all ``now`` arguments.
    """

    def __init__(self, *, keeps_text: bool, begun: float) -> None:
        self._keeps_text = keeps_text
        self._begun = begun
        self._entries: list[Entry] = []
        self._lost = 0
        self._chars = 0
        self._measured: dict[str, _Measured] = {}
        self._answered_by: AnsweredBy | None = None
        self._turns = 0
        self._gaps = 0
        self._gap_s = 0.0
        self._longest_ms: float | None = None
        self._caller_stopped_at: float | None = None
        """Time at which the caller stopped. None: a turn has been heard since."""

    def told(self, message: Outbound, now: float) -> None:
        """Record a message to the manager; most messages leave no entry."""
        at_ms = self._ms(now)
        match message:
            case Prompt(last=True):
                words, typed_by = self._kept(message.voice_prompt), message.typed_by or None
                self._add(HeardWords(atMs=at_ms, text=words, lang=message.lang, typedBy=typed_by))
            case Dtmf():
                self._caller_stopped_at = now
                self._add(Pressed(atMs=at_ms, digit=self._kept(message.digit)))
            case Call():
                self._add(Progressed(atMs=at_ms, event=message.event, sipStatus=message.sip_status, code=message.code))
            case Answered():
                self._answered_by = message.by
                self._add(
                    WhoAnswered(
                        atMs=at_ms,
                        by=message.by,
                        confidence=message.confidence,
                        text=self._kept(message.text),
                        waiting=message.waiting,
                    )
                )
            case Error():
                # This one has no words of anyone.
                told = message.description if message.code == "message_skipped" else self._kept(message.description)
                self._add(Fault(atMs=at_ms, code=message.code, description=told))

    def caller_stopped(self, at: float) -> None:
        """Record that the caller has said something, and was silent from ``at`` on."""
        self._caller_stopped_at = at

    def listened(self, by: str, event: Literal["joined", "left"], now: float) -> None:
        """Record that a client with a key of tenant ``by`` began or stopped listening in."""
        self._add(Listened(atMs=self._ms(now), by=by, event=event))

    def supervised(self, by: str, leg: str, event: SupervisorEvent, now: float) -> None:
        """Record what a supervisor's leg does that tenant ``by`` asked for."""
        self._add(SupervisorMoved(atMs=self._ms(now), by=by, leg=leg, event=event))

    def first_packet(self, turn: Turn, measured: FirstPacket, now: float) -> None:
        """Record the first audible frame of a turn."""
        of_turn = self._measured.setdefault(turn.id, _Measured())
        of_turn.started_at, of_turn.first_packet = now, measured
        of_turn.caller_stopped_at, self._caller_stopped_at = self._caller_stopped_at, None

    def gap(self, turn: Turn, length_s: float) -> None:
        """Record a gap in the middle of a turn."""
        of_turn = self._measured.setdefault(turn.id, _Measured())
        of_turn.gaps += 1
        of_turn.gap_s += length_s

    def turn_ended(self, turn: Turn, reason: str, *, heard_chars: int, now: float) -> None:
        """Record the end of a turn."""
        of_turn = self._measured.pop(turn.id, None) or _Measured()
        first = of_turn.first_packet
        waited_ms = None if first is None or first.follows else round(first.total_s * 1000, 1)
        if of_turn.started_at is not None:
            self._turns += 1
        self._gaps += of_turn.gaps
        self._gap_s += of_turn.gap_s
        if waited_ms is not None:
            self._longest_ms = max(waited_ms, self._longest_ms or 0.0)
        self._add(
            Said(
                atMs=self._ms(turn.accepted_at),
                turn=turn.id,
                what=turn.kind,
                # The digits of a turn may belong to a card; a clip's address is configuration.
                text=self._kept(turn.text),
                heardChars=len(turn.text) if turn.state.place is Place.FINISHED else heard_chars,
                startedMs=None if of_turn.started_at is None else self._ms(of_turn.started_at),
                endedMs=self._ms(now),
                outcome=turn.state.place.value,
                reason=reason,
                callerStoppedMs=None if of_turn.caller_stopped_at is None else self._ms(of_turn.caller_stopped_at),
                firstPacketMs=waited_ms,
                stagesMs={} if first is None else {name: round(ms, 1) for name, ms in first.stages_ms.items()},
                gaps=of_turn.gaps,
                gapMs=round(of_turn.gap_s * 1000),
            )
        )

    def record(
        self, call: CallInfo, *, started_at: float, reason: str, cause: EndCause, failed: bool, now: float
    ) -> CallRecord:
        """Return the record of the ended call.

        Args:
            started_at: start of the call, seconds since the epoch.
            reason, cause: reason and cause of the end.
            failed: True if an internal error ended the call or no dialogue manager was available.
        """
        return CallRecord(
            callId=call.call_id,
            callSid=call.call_sid,
            route=call.route,
            transport=call.transport,
            direction=call.direction,
            from_=call.from_,
            to=call.to,
            startedAt=started_at,
            durationMs=self._ms(now),
            reason=reason,
            endedBy=cause.by,
            sipStatus=cause.sip_status,
            q850=cause.q850,
            endText=cause.text or None,
            correlationId=call.correlation_id,
            answeredBy=self._answered_by,
            outcome="failed" if failed else "completed",
            turns=self._turns,
            gaps=self._gaps,
            gapMs=round(self._gap_s * 1000),
            firstPacketMs=self._longest_ms,
            entries=sorted(self._entries, key=lambda entry: entry.atMs),
            entriesLost=self._lost,
        )

    def _ms(self, at: float) -> int:
        return round((at - self._begun) * 1000)

    def _kept(self, text: str) -> str | None:
        if not self._keeps_text or self._chars + len(text) > CHARS:
            return None
        self._chars += len(text)
        return text

    def _add(self, entry: Entry) -> None:
        if len(self._entries) < ENTRIES:
            self._entries.append(entry)
        else:
            self._lost += 1
