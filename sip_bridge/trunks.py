"""Who may call: a peer proves itself by source address, password (digest) or TLS client certificate. Pure.

The check comes before a call costs anything. Strangers get no answer, so a scan for open gateways finds nothing.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.listener.source_limit import SourceLimit
from sip_bridge.dialog.dialog import Refusal
from sip_bridge.errors import ProtocolError
from sip_bridge.message.digest import ServerAuth, Verdict
from sip_bridge.message.sip import Request

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Standing(enum.Enum):
    """What we know of the source of a message before we read the message."""

    KNOWN = "known"  # the source has a trunk's address or certificate
    UNPROVEN = "unproven"  # this may be anybody, since some trunk asks only for a password
    STRANGER = "stranger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trunk:
    """A peer that may call. A caller must meet every condition that is given; a trunk without conditions lets everybody
    in.

    Raises:
        ValueError: a user name is given without a password, or the reverse.
    """

    name: str
    networks: tuple[Network, ...] = ()
    """Addresses from which the peer may call. Empty: any."""
    username: str = ""
    """Digest user. Empty: we ask for no password."""
    password: str = ""
    certificate_names: frozenset[str] = frozenset()
    """In lower case. One of these must be a subjectAltName of the peer's verified certificate (RFC 5922 section
    7.1)."""
    route: str = "default"
    """The route of the trunk's calls."""

    def __post_init__(self) -> None:
        if bool(self.username) != bool(self.password):
            raise ValueError(f"trunk {self.name} has only one of user name and password, expected both or neither")

    def __repr__(self) -> str:
        return f"Trunk({self.name})"  # a password does not belong in a log

    def _may_be(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address, names: frozenset[str]) -> bool:
        here = not self.networks or any(address in network for network in self.networks)
        return here and (not self.certificate_names or not self.certificate_names.isdisjoint(names))


class Trunks:
    """Judges requests that would begin something: INVITE, REGISTER, REFER, and OPTIONS outside a dialog.

    Trunks that ask for no password are tried first, otherwise trunks are tried in their order.

    Args:
        auth: our realm and nonces.
        calls: how many calls one source address may begin.
        failures: how many wrong passwords one source address may send. While they are used up, we do not even read its
            credentials, so nobody can guess passwords at the speed of the network.
    """

    def __init__(self, trunks: Sequence[Trunk], auth: ServerAuth, *, calls: SourceLimit, failures: SourceLimit) -> None:
        self._trunks = tuple(trunks)
        self._auth = auth
        self._calls = calls
        self._failures = failures

    def standing(self, host: str, certificate_names: Iterable[str] = ()) -> Standing:
        """Return what a source is to us, by its address, as the socket tells it, and the names in its certificate."""
        candidates = self._candidates(host, certificate_names)
        if any(trunk.networks or trunk.certificate_names for trunk in candidates):
            return Standing.KNOWN
        return Standing.UNPROVEN if candidates else Standing.STRANGER

    def _candidates(self, host: str, certificate_names: Iterable[str]) -> list[Trunk]:
        address = ipaddress.ip_address(host.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        names = frozenset(name.lower() for name in certificate_names)
        return [trunk for trunk in self._trunks if trunk._may_be(address, names)]

    def admit(
        self, request: Request, host: str, *, certificate_names: Iterable[str] = (), now: float, wall: float
    ) -> Trunk | Refusal | None:
        """Return the trunk whose request this is, or the refusal that answers it (401, 403, 503 or 400). None: no
        answer at all.

        Args:
            host: the source address, as the socket tells it.
            certificate_names: the names in the connection's verified certificate.
            now: monotonic seconds.
            wall: seconds since the epoch, which date the nonces.
        """
        candidates = self._candidates(host, certificate_names)
        if not candidates:
            return None
        if not self._calls.take(host, now=now):
            return Refusal(503, (("Retry-After", "5"),))
        for trunk in candidates:
            if not trunk.username:
                return trunk
        return self._by_password(candidates, request, host, now, wall)

    def _by_password(
        self, candidates: list[Trunk], request: Request, host: str, now: float, wall: float
    ) -> Trunk | Refusal:
        if self._failures.empty(host, now=now):
            return Refusal(403)
        users = {trunk.username: trunk for trunk in reversed(candidates)}
        try:
            verdict, username = self._auth.check(
                request.headers.all("Authorization"),
                {username: trunk.password for username, trunk in users.items()},
                method=request.method,
                uri=request.uri,
                now=wall,
            )
        except ProtocolError:
            return Refusal(400)
        if verdict is Verdict.GOOD:
            return users[username]
        if verdict is Verdict.WRONG:
            self._failures.take(host, now=now)
        challenges = self._auth.challenges(now=wall, stale=verdict is Verdict.STALE)
        return Refusal(401, tuple(("WWW-Authenticate", challenge) for challenge in challenges))
