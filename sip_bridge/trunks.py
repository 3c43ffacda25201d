"""Decides which peers may call, by source address, password (digest) or TLS client certificate. Pure.

The check comes before a call costs anything. Strangers get no answer, so a scan for open gateways finds nothing.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.listener.source_limit import SourceLimit
from sip_bridge.dialog.dialog import Refusal
from sip_bridge.errors import SipProtocolError
from sip_bridge.message.digest import DigestVerdict, ServerAuth
from sip_bridge.message.sip import Request

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class SourceStanding(enum.Enum):
    """The knowledge about the source of a message before the message is read."""

    KNOWN = "known"  # the source has a trunk's address or certificate
    UNPROVEN = "unproven"  # possibly a trunk: some trunk asks only for a password
    STRANGER = "stranger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trunk:
    """A peer that may call. A caller must meet every condition that is set; a trunk without conditions admits everyone.

    Raises:
        ValueError: a user name is given without a password, or the reverse.
    """

    name: str
    networks: tuple[Network, ...] = ()
    """Addresses from which the peer may call. Empty: any."""
    username: str = ""
    """Digest user name. Empty: no password is required."""
    password: str = ""
    certificate_names: frozenset[str] = frozenset()
    """In lower case. The peer's verified certificate must have one of these as subjectAltName (RFC 5922 section
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
    """Judges requests outside dialogs: INVITE, REGISTER, REFER and OPTIONS.

    Trunks without a password are tried first, the others in their order.

    Args:
        auth: our realm and nonces.
        calls: limits the calls that one source address may begin.
        failures: limits the wrong passwords of one source address. Over the limit, its credentials are not even read,
            which slows down password guessing.
    """

    def __init__(self, trunks: Sequence[Trunk], auth: ServerAuth, *, calls: SourceLimit, failures: SourceLimit) -> None:
        self._trunks = tuple(trunks)
        self._auth = auth
        self._calls = calls
        self._failures = failures

    def standing(self, host: str, certificate_names: Iterable[str] = ()) -> SourceStanding:
        """Return the standing of a source, given its address from the socket and the names in its certificate."""
        candidates = self._candidates(host, certificate_names)
        if any(trunk.networks or trunk.certificate_names for trunk in candidates):
            return SourceStanding.KNOWN
        return SourceStanding.UNPROVEN if candidates else SourceStanding.STRANGER

    def _candidates(self, host: str, certificate_names: Iterable[str]) -> list[Trunk]:
        address = ipaddress.ip_address(host.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        names = frozenset(name.lower() for name in certificate_names)
        return [trunk for trunk in self._trunks if trunk._may_be(address, names)]

    def admit(
        self, request: Request, host: str, *, certificate_names: Iterable[str] = (), now: float, wall: float
    ) -> Trunk | Refusal | None:
        """Return the trunk that sent this request, or the refusal that answers it (401, 403, 503 or 400). None: no
        answer.

        Args:
            host: the source address, from the socket.
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
                dialled=str(request.to.uri),
                now=wall,
            )
        except SipProtocolError:
            return Refusal(400)
        if verdict is DigestVerdict.GOOD:
            return users[username]
        if verdict is DigestVerdict.WRONG:
            self._failures.take(host, now=now)
        challenges = self._auth.challenges(now=wall, stale=verdict is DigestVerdict.STALE)
        return Refusal(401, tuple(("WWW-Authenticate", challenge) for challenge in challenges))
