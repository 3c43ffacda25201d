"""The media address of one leg's peer (RFC 3264, symmetric RTP of RFC 4961). Pure.

* Sent to: the address of the latest description, from that description on (RFC 3264 section 8.3.1).
* Heard: the address that is sent to, and always the described one.
* The described address is silent: another source is followed after three consecutive packets of one stream, if the
  policy allows its address. Address translators (NAT) make this necessary. The signalling host, which ``host`` allows,
  may begin at any time, because some phones send nothing before their user speaks; other hosts have ``window_s``.
* The described address speaks later: the leg returns to it, and follows no other source until the next description.
* The source that is heard falls silent: another port of its host is followed after ``SILENT_S``, unless the policy is
  ``strict``. A translator may give a phone another port at any time (RFC 6263), and then no description comes.
* A description replaces the address: the old source is heard until another one is, so that the audio has no gap. It is
  followed only after ``REPLACED_S`` in which no other source sent, because packets of the old stream still arrive.
* The same description comes again: nothing changes. A refresh must not undo what a translator made necessary.
* A description returns to an earlier address: the source that stood for it then is an ordinary candidate again.

A stranger who sends one packet to the port must not receive the call's audio.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

PeerAddress: TypeAlias = tuple[str, int]
"""Host as given by the socket, and port."""

REPLACED_S = 2.0
"""Time without packets from any other source after which a replaced source may be followed, seconds. The old stream of
a phone or a switch ends well within it."""

SILENT_S = 2.0
"""Time without packets from the source that is heard after which another port of its host may be followed, seconds."""

_REMEMBERED = 8
"""Most replaced sources that are kept."""


class Latch:
    """Decides which packets belong to the call, and the destination of the sent ones.

    Args:
        policy: ``strict`` keeps the signalled address. ``host`` follows only to the signalling host. ``any`` follows to
            any address.
        signalling_host: the host from which the peer signals, for ``host``.
        window_s: time after an offer and answer in which ``any`` may follow, seconds.
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
        self._described_at = 0.0
        self._other_at = 0.0
        """Time of the last description, or of the last packet of a source that no description replaced."""
        self._locked = True
        self._alive = False
        """True: a packet of ``remote`` has come."""
        self._heard_at = 0.0
        """Time of the last packet of ``remote``."""
        self._moving = False
        """True: the described address is new, and only replaced sources have been heard since."""
        self._replaced: dict[PeerAddress, PeerAddress] = {}
        """Earlier sources, and the described address for which each one stood. The oldest is first."""
        self._candidate: tuple[PeerAddress, int] | None = None
        self._sequence = 0
        self._count = 0

    def negotiated(self, remote: PeerAddress | None, *, now: float) -> None:
        """Start at the address of a description (None: the peer does not listen), and open the window."""
        if remote is not None and remote == self._named:
            return
        self._moving = False
        if self._named is not None:
            for source in (self._named, self.remote):
                if source is not None:
                    self._replaced.pop(source, None)
                    self._replaced[source] = self._named
            self._moving = self._alive
            while len(self._replaced) > _REMEMBERED:
                del self._replaced[next(iter(self._replaced))]
        self._named = remote
        self.remote = remote
        self._locked = False
        self._alive = False
        self._candidate = None
        self._described_at = self._other_at = now

    def accept(self, source: PeerAddress, ssrc: int, sequence: int, *, now: float) -> bool:
        """Return True if a packet belongs to the call. Call this only for authentic RTP of a known payload type."""
        if source == self._named or source == self.remote:
            if source == self._named:
                self.remote = source
                self._moving = False
            self._locked = self._alive = True
            self._heard_at = now
            return True
        replaced = self._is_replaced(source)
        if not replaced:
            self._other_at = now
        if self._may_follow(source, now, replaced=replaced):
            if self._candidate == (source, ssrc) and (sequence - self._sequence) & 0xFFFF == 1:
                self._count += 1
            elif self._candidate != (source, ssrc) or sequence != self._sequence:
                self._candidate, self._count = (source, ssrc), 1
            self._sequence = sequence
            if self._count >= self._packets:
                self.remote = source
                self._locked = self._alive = True
                self._heard_at = now
                self._moving = False
                self._candidate = None
                return True
        if replaced and self._moving:
            return True
        return False

    def knows(self, host: str) -> bool:
        """Return True for the hosts of the destination, of the description and, unless ``strict``, of the signalling.
        Reports may come from each of them."""
        if self._policy != "strict" and host == self._signalling_host and self._named is not None:
            return True
        return any(address is not None and address[0] == host for address in (self.remote, self._named))

    def _is_replaced(self, source: PeerAddress) -> bool:
        stood_for = self._replaced.get(source)
        return stood_for is not None and stood_for != self._named

    def _may_follow(self, source: PeerAddress, now: float, *, replaced: bool) -> bool:
        if self.remote is None or (replaced and now < self._other_at + REPLACED_S):
            return False
        if self._locked:
            is_another_port = source[0] == self.remote[0] and not replaced
            return self._policy != "strict" and is_another_port and now >= self._heard_at + SILENT_S
        if self._policy == "host":
            return source[0] == self._signalling_host
        return self._policy == "any" and now <= self._described_at + self._window_s
