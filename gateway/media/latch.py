"""Where a leg's RTP goes, when the peer's address is not the one it named (symmetric RTP, RFC 4961). Pure.

Behind an address translator the packets come from elsewhere than the session description says. The leg follows them,
but only in a short window after each offer and answer, and only a stream that looks like the call's: who sends one
packet to the port must not get the call's audio.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

PeerAddress: TypeAlias = tuple[str, int]
"""Host as the socket tells it, and port."""


class Latch:
    """Decides which packets are the call's and where ours go.

    Args:
        policy: ``strict`` keeps to the address named; ``host`` follows within the host that signals; ``any`` follows
            anywhere.
        signalling_host: of the peer, for ``host``.
        window_s: how long after an offer and answer the leg may still follow, if it has not by then.
        packets: in sequence and of one source, before it is followed.
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
        """Where we send; None: nowhere."""
        self.refused = 0
        """Packets of others."""
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
        """An offer and its answer named this address (None: nobody listens): begin there, and open the window.

        The same address as before changes nothing: a refresh must not send the audio back to an address that the
        translator hides.
        """
        if remote is not None and remote == self._named:
            return
        self._named = remote
        self.remote = remote
        self._locked = False
        self._candidate = None
        self._closes_at = now + self._window_s

    def accept(self, source: PeerAddress, ssrc: int, sequence: int, *, now: float) -> bool:
        """Whether a packet is the call's. Ask only for authentic RTP of a negotiated payload type."""
        if source == self.remote:
            self._locked = True  # the address is alive: no reason to look for another
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
        self.refused += 1
        return False

    def knows(self, host: str) -> bool:
        """Whether the call's media is sent to this host, or was to be: reports may come from either."""
        return any(address is not None and address[0] == host for address in (self.remote, self._named))

    def _may_follow(self, source: PeerAddress, now: float) -> bool:
        if self._locked or self.remote is None or now > self._closes_at:
            return False
        return self._policy == "any" or (self._policy == "host" and source[0] == self._signalling_host)
