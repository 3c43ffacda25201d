"""Symmetric RTP (RFC 4961): the destination of a leg's RTP if the peer's address differs from the signalled one. Pure.

Behind an address translator, packets come from another address than the session description says. The leg follows them,
but only in a short window after each offer and answer, and only if they look like the call's stream. A stranger who
sends one packet to the port must not receive the call's audio.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

PeerAddress: TypeAlias = tuple[str, int]
"""Host as given by the socket, and port."""


class Latch:
    """Decides which packets belong to the call, and the destination of the sent ones.

    Args:
        policy: ``strict`` keeps the signalled address. ``host`` follows only to the signalling host. ``any`` follows to
            any address.
        signalling_host: the host from which the peer signals, for ``host``.
        window_s: time after an offer and answer in which the leg may follow, seconds.
        packets: consecutive packets from a source before it is followed.
    """

    def __init__(
        self,
        policy: Literal["strict", "host", "any"],
        *,
        signalling_host: str = "",
        window_s: float = 10.0,
        packets: int = 3,
    ) -> None:
        self.remote: PeerAddress | None = None
        """Destination address. None: nothing is sent."""
        self._named: PeerAddress | None = None
        self._policy = policy
        self._signalling_host = signalling_host
        self._window_s = window_s
        self._packets = packets
        self._closes_at = 0.0
        self._locked = True
        self._candidate: tuple[PeerAddress, int] | None = None
        self._sequence = 0
        self._count = 0

    def negotiated(self, remote: PeerAddress | None, *, now: float) -> None:
        """Start at the address of an offer and its answer (None: the peer does not listen), and open the window.

        An unchanged address has no effect: a refresh must not send the audio back to an address hidden by the
        translator.
        """
        if remote is not None and remote == self._named:
            return
        self._named = remote
        self.remote = remote
        self._locked = False
        self._candidate = None
        self._closes_at = now + self._window_s

    def accept(self, source: PeerAddress, ssrc: int, sequence: int, *, now: float) -> bool:
        """Return True if a packet belongs to the call. Call this only for authentic RTP of a negotiated payload
        type."""
        if source == self.remote:
            self._locked = True  # the address is alive, so no other is searched for
            return True
        if self._may_follow(source, now):
            if self._candidate == (source, ssrc) and (sequence - self._sequence) & 0xFFFF == 1:
                self._count += 1
            elif self._candidate != (source, ssrc) or sequence != self._sequence:
                self._candidate, self._count = (source, ssrc), 1
            self._sequence = sequence
            if self._count >= self._packets:
                self.remote = source
                self._locked = True
                self._candidate = None
                return True
        return False

    def knows(self, host: str) -> bool:
        """Return True if this is the destination host or the signalled host. Reports may come from both."""
        return any(address is not None and address[0] == host for address in (self.remote, self._named))

    def _may_follow(self, source: PeerAddress, now: float) -> bool:
        if self._locked or self.remote is None or now > self._closes_at:
            return False
        return self._policy == "any" or (self._policy == "host" and source[0] == self._signalling_host)
