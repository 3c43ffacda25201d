"""The live turns of a call in their order of speaking, and the admission of new ones. Pure; knows nothing of sound.

A held turn has no place in the order until it is committed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

from gateway.call.turn_taking.turn import Kind, Place, Turn, TurnDefaults
from gateway.seams.messages import End, Error, Outbound


class TurnQueue:
    """The live turns of one call. ``tell`` sends refusals to the dialogue manager as ``error``."""

    _REMEMBERED_IDS = 1024  # repeated ids and late tokens are recognised over this many turns

    def __init__(self, defaults: TurnDefaults, tell: Callable[[Outbound], None]) -> None:
        self.language = defaults.language
        """The language of later turns."""
        self.voices: dict[str, str] = {}
        """Voices by the language for which the manager declared them."""
        self.ending: End | None = None
        """The manager's ``end``: no new turn is admitted, and the session ends with the last live turn."""
        self.defaults = defaults
        """Defaults of later turns."""
        self._tell = tell
        self._turns: OrderedDict[str, Turn] = OrderedDict()  # in the order of speaking
        self._ids: OrderedDict[str, None] = OrderedDict()  # recent ids, live and dead
        self._count = 0

    @property
    def live(self) -> list[Turn]:
        """Turns that have not ended, in the order of speaking; held turns stand anywhere among them."""
        return list(self._turns.values())

    @property
    def held(self) -> list[Turn]:
        """Held turns."""
        return [turn for turn in self._turns.values() if turn.state.place is Place.HELD]

    @property
    def in_line(self) -> list[Turn]:
        """Turns that speak or will speak, in that order."""
        return [turn for turn in self._turns.values() if turn.state.place is not Place.HELD]

    def speaking(self) -> Turn | None:
        """Return the turn that the caller hears now, if any."""
        for turn in self._turns.values():
            if turn.track.sent and turn.state.place is Place.SPEAKING:
                return turn
        return None

    def interruptible_by(self, source: Literal["speech", "dtmf"]) -> bool:
        """Return True if such input would cut something now."""
        turn = self.speaking()
        return turn is not None and turn.interruptible in ("any", source)

    def get(self, turn_id: str) -> Turn | None:
        """Return the live turn of that id, or None."""
        return self._turns.get(turn_id)

    def remembers(self, turn_id: str) -> bool:
        """Return True if a recent turn, live or ended, had that id."""
        return turn_id in self._ids

    def find(self, turn_id: str, verb: str) -> Turn | None:
        """Return the turn that the message ``verb`` names. None: it has just ended by itself, or it is unknown, which
        is an error."""
        turn = self._turns.get(turn_id)
        if turn is None and turn_id not in self._ids:
            self.refuse(f"{verb}: turn {turn_id!r} is unknown", "unknown_turn", turn_id, "turn")
        return turn

    def admit(self, turn_id: str, kind: Kind, now: float, *, held: bool = False) -> Turn | None:
        """Admit a new turn after the others. None: it is refused. An empty ``turn_id`` is replaced by a generated
        one."""
        limits = self.defaults
        turn_id = turn_id or self._next_id()
        if turn_id in self._ids:
            self.refuse(f"turn {turn_id!r} was used before, expected a new id", "repeated_turn", turn_id, "turn")
        elif self.ending is not None:
            self.refuse("the session is ending, no new turn is taken", "ending", turn_id, "type")
        elif len(self._turns) >= limits.turns_queued:
            waiting = f"{len(self._turns)} turns are waiting, limits.turns_queued is {limits.turns_queued}"
            self.refuse(waiting, "too_many_turns", turn_id, "turn")
        elif held and len(self.held) >= limits.held_turns:
            waiting = f"{limits.held_turns} turns are held already (playout.held_turns)"
            self.refuse(waiting, "too_many_held", turn_id, "hold")
        else:
            turn = Turn(turn_id, kind, limits, language=self.language, now=now, held=held)
            turn.voice = self.voices.get(self.language, turn.voice)
            self._turns[turn_id] = turn
            self._remember(turn_id)
            return turn
        return None

    def refuse(self, description: str, code: str, turn_id: str, field: str) -> None:
        """Send the manager an error for a refused request."""
        self._tell(Error(description=description, code=code, turn=turn_id, field=field))

    def _next_id(self) -> str:
        while True:
            self._count += 1
            if f"t{self._count}" not in self._ids:
                return f"t{self._count}"

    def _remember(self, turn_id: str) -> None:
        self._ids[turn_id] = None
        while len(self._ids) > self._REMEMBERED_IDS:
            oldest = next(iter(self._ids))
            if oldest in self._turns:
                self._ids.move_to_end(oldest)
            else:
                del self._ids[oldest]

    def move_to_end(self, turn: Turn) -> None:
        """Move a turn to the end of the order."""
        self._turns.move_to_end(turn.id)

    def remove(self, turn: Turn) -> None:
        """Remove a turn that has ended; its id stays known."""
        del self._turns[turn.id]

    def withdraw(self, turn: Turn) -> None:
        """Remove a turn as if it had never been admitted."""
        del self._turns[turn.id], self._ids[turn.id]
