"""Text tokens that carry no turn id: which turn takes the next one, and which come too late to be spoken? Pure."""

from __future__ import annotations

from gateway.call.turn_taking.turn import Turn


class UntaggedText:
    """The stream of untagged tokens of one call.

    A manager that streams goes on for a while when its turn has been cut, since it does not know of the cut yet. Such
    tokens are the tail of the turn, and no new turn.

    Args:
        stale_s: for how long after a cut, or after the token before, a token counts as tail.
    """

    def __init__(self, stale_s: float) -> None:
        self.turn: Turn | None = None
        """The turn whose text is not complete yet; it takes the next token."""
        self._stale_s = stale_s
        self._stale_until = 0.0
        self._slides = False

    def leave(self, turn: Turn) -> None:
        """The turn takes no more tokens."""
        if turn is self.turn:
            self.turn = None

    def cut(self, now: float, *, known_by_prompt: bool) -> None:
        """The turn was cut. If the manager knows of that only by the prompt that follows, its tail may last as long as
        it flows."""
        self._stale_until = now + self._stale_s
        self._slides = known_by_prompt

    def expect_answer(self) -> None:
        """The manager knows of the cut, or it was told a prompt or digit. Whatever it says from now on is new, however
        soon it comes."""
        self._stale_until = 0.0

    def is_tail(self, now: float, *, last: bool) -> bool:
        """Whether a token that comes now is the tail of the turn that was cut; its ``last`` token ends the tail."""
        if now >= self._stale_until:
            return False
        if last:
            self._stale_until = 0.0
        elif self._slides:
            self._stale_until = now + self._stale_s
        return True
