"""Text tokens without a turn id, and sound: which turn takes the next piece, and which come too late. Pure."""

from __future__ import annotations

from gateway.call.turn_taking.turn import Turn


class UntaggedText:
    """The stream of untagged tokens of one call, or of the sound that its manager makes.

    A streaming manager keeps sending for a while after its turn has been cut, because it does not know of the cut yet.
    Such tokens are the tail of the cut turn, not a new turn.

    Args:
        stale_s: time after a cut, or after the previous tail token, in which a token counts as tail.
    """

    def __init__(self, stale_s: float) -> None:
        self.turn: Turn | None = None
        """The turn whose text or sound is not complete yet; it takes the next token or piece."""
        self._stale_s = stale_s
        self._stale_until = 0.0
        self._tail_extends = False
        self._tail_is_sound = False

    def leave(self, turn: Turn) -> None:
        """The turn takes no more tokens."""
        if turn is self.turn:
            self.turn = None

    def cut(self, now: float, *, known_by_prompt: bool) -> None:
        """The turn was cut. ``known_by_prompt``: the manager learns of it only by the next prompt, so the tail may last
        as long as tokens keep coming."""
        self._stale_until = now + self._stale_s
        self._tail_extends = known_by_prompt
        self._tail_is_sound = self.turn is not None and self.turn.kind == "audio"

    def expect_answer(self) -> None:
        """The manager knows of the cut, or was told a prompt or digit: every later token is new, however soon it
        comes."""
        self._stale_until = 0.0

    def is_tail(self, now: float, *, last: bool) -> bool:
        """Return True if a token that comes now belongs to the cut turn; its ``last`` token ends the tail."""
        if now >= self._stale_until:
            return False
        if last:
            self._stale_until = 0.0
        elif self._tail_extends:
            self._stale_until = now + self._stale_s
        return True

    def follows_lost_sound(self, now: float) -> bool:
        """Return True if a mark that comes now follows sound of a cut turn, and so will never be reached."""
        return self._tail_is_sound and self.is_tail(now, last=False)
