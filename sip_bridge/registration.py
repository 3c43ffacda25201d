"""Registers at a registrar by REGISTER and renews the registration before it expires (RFC 3261 section 10)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import uuid
from collections.abc import Callable
from dataclasses import replace

from gateway.seams.supervision import SUPERVISOR, SupervisedTask
from sip_bridge.config import RegistrationConfig
from sip_bridge.errors import SipProtocolError, Unreachable
from sip_bridge.io.client import Client
from sip_bridge.io.locate import locate_all
from sip_bridge.local import HeaderItems, LocalAddress, Peer
from sip_bridge.message.digest import ClientAuth
from sip_bridge.message.sip import Address, Headers, Request, Response, Uri, unquote

log = logging.getLogger(__name__)

_REFRESH_SHARE = (0.6, 0.8)
"""The range of the random share of the granted time after which to register again, so that renewals spread out."""

RETRY_S = 30.0
"""Pause after a failed registration, seconds. It doubles with each failure and varies at random by 0.5 to 1.5."""

_MAX_RETRY_FACTOR = 10
"""The pause doubles with each failure, up to this multiple of the first pause."""

_GOODBYE_S = 2.0

_FLOW_S = 120.0
"""Longest pause between two keep-alives on the connection with a registrar that names none (RFC 5626 section 4.4.1)."""

_PONG_S = 10.0
"""Longest wait for the answer to a keep-alive (RFC 5626 section 4.4.1)."""

_MAX_ROUTES = 10

_NO_OUTBOUND = 439
"""First Hop Lacks Outbound Support (RFC 5626 section 11.6)."""


class Registration:
    """One account at one registrar. ``start`` keeps it registered until ``close``.

    Args:
        local: the address at which peers reach us.
        flow: number of this registration among those of its account (``reg-id``, RFC 5626 section 4.2).
        on_change: called when ``registered`` changes.
    """

    def __init__(
        self,
        config: RegistrationConfig,
        client: Client,
        local: LocalAddress,
        *,
        flow: int = 1,
        on_change: Callable[[Registration], None] = lambda _: None,
    ) -> None:
        self.config = config
        self.registered = False
        self.status = 0
        """The status of the registrar's last answer. 0: none yet."""
        self.peer: Peer | None = None
        """The registrar's address, once known."""
        self.hosts: frozenset[str] = frozenset()
        """All addresses of the registrar. Calls for this registration come from them."""
        self._client = client
        self._local = local
        self._on_change = on_change
        self.service_route: tuple[str, ...] = ()
        """The route that the registrar named for our calls, as values of Route (RFC 3608). Empty: none."""
        self._name = config.registrars[0]
        self.registrar = Uri.parse(self._name)
        """The registrar's address, as configured."""
        self.hop = Uri.parse(config.outbound_proxy) if config.outbound_proxy else self.registrar
        """The next hop of our requests."""
        self.routes = (loose_route(self.hop),) if config.outbound_proxy else ()
        """The Route of our requests."""
        # Without a proxy in between, the domain's name is enough.
        where = str(Uri("sip", "", self.registrar.host, self.registrar.port if self.routes else None))
        self.address = Uri.parse(config.address)
        """The address of record."""
        self._uri = f"sip:{config.domain}" if config.domain else where
        self._auth = credentials_of(config)
        self._call_id = secrets.token_hex(16)
        self._tag = secrets.token_hex(8)
        self._cseq = 0
        self._expires_s = config.expires_s
        self._logged: tuple[bool, int] | None = None
        self._closing = False
        self._lost = asyncio.Event()
        self._losses = 0
        """Number of connections lost in a row, each within ``RETRY_S`` of its registration."""
        self._flow_s = 0
        """Flow-Timer of the registrar's answer, seconds: it answers keep-alives, and expects them. 0: not named."""
        self._outbound = {"reg-id": str(flow), "+sip.instance": f'"<{instance(local)}>"'}
        """Parameters of our contact that name the flow, over TCP and TLS. Empty: the first hop does not support it."""
        self._pongs = False
        """True: the registrar has answered a keep-alive, so it knows them."""
        self._task: SupervisedTask | None = None

    @property
    def contact(self) -> Uri:
        """The address to which the registrar sends calls."""
        return self._local.contact(self.peer.transport if self.peer else "UDP", self.config.username)

    def brings(self, host: str) -> bool:
        """Return True if a request from this address comes through this registration."""
        return bool(self.config.trunk) and self.registered and host in self.hosts

    def names(self, uri: str) -> bool:
        """Return True if a Request-URI is our contact. Some registrars put the called number in its place."""
        try:
            return Uri.parse(uri).user == self.config.username
        except SipProtocolError:
            return False

    def start(self) -> None:
        """Register now, and renew until ``close``."""
        self._task = SUPERVISOR.task(f"registration {self._name}", self._keep)

    def renew(self) -> None:
        """Register again at once, because the connection with the registrar is lost and calls cannot come."""
        if self._task is not None and not self._closing:
            self._lost.set()

    async def close(self) -> None:
        """Stop, and unregister. The registrar has two seconds to answer."""
        self._closing = True
        if self._task:
            await self._task.aclose()
        if self.registered and self.peer:
            try:
                async with asyncio.timeout(_GOODBYE_S):
                    await self._ask(self.peer, 0)
            except TimeoutError:
                log.info("registrar did not answer the unregistration", extra={"registrar": self._name})
            self._became(False)

    async def _keep(self) -> None:
        failures = 0
        clock = asyncio.get_running_loop().time
        while True:
            self._lost.clear()
            pause_s = await self._register()
            if self.registered:
                failures = 0
            else:
                longest = RETRY_S * min(2**failures, _MAX_RETRY_FACTOR)
                pause_s = max(pause_s, longest * random.uniform(0.5, 1.5))
                failures = min(failures + 1, 10)
            began = clock()
            if await self._disconnected(pause_s):
                if self.registered:
                    self.status = 503
                    self._became(False)
                    # A registrar that closes every connection gets a pause, as one that refuses does.
                    self._losses = self._losses + 1 if clock() - began < RETRY_S else 0
                    if self._losses > 1:
                        await asyncio.sleep(RETRY_S * min(2 ** (self._losses - 2), _MAX_RETRY_FACTOR))
                else:
                    await asyncio.sleep(max(0.0, began + pause_s - clock()))

    async def _lost_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._lost.wait(), seconds)
        return self._lost.is_set()

    async def _disconnected(self, seconds: float) -> bool:
        """Wait, and send keep-alives on the connection with the registrar meanwhile (RFC 5626 section 4.4.1). Return
        True at once if the connection is lost.

        Not every registrar answers them. One that has answered before, or that names a Flow-Timer, must answer.
        """
        clock, endpoint = asyncio.get_running_loop().time, self._client.endpoint
        until = clock() + seconds
        while self.registered and self.peer is not None and self.peer.transport != "UDP":
            pause_s = (self._flow_s or _FLOW_S) * random.uniform(0.8, 1.0)
            if clock() + pause_s + _PONG_S >= until:
                break
            if await self._lost_within(pause_s):
                return True
            sent_at = clock()
            flow = endpoint.flow(self.peer)
            if flow is None or not flow.ping():
                break
            if await self._lost_within(_PONG_S):
                return True
            if flow.heard_at >= sent_at:
                self._pongs = True
            elif self._pongs or self._flow_s:
                log.info("registrar does not answer keep-alives", extra={"registrar": self._name})
                flow.fail()
        return await self._lost_within(max(0.0, until - clock()))

    async def _register(self) -> float:
        """Try once. Return the shortest wait until the next attempt, in seconds."""
        try:
            # The name is looked up each time, because the registrar may move.
            found = await locate_all(self.hop, ours=self._local.host)
            self.hosts = frozenset(each.host for each in found)
            if self.routes:
                self.hosts |= await self._hosts_of_registrar()
            for self.peer in found:
                response = await self._ask(self.peer, self._expires_s)
                if response.status == 423:
                    self._expires_s = response.headers.seconds("Min-Expires") or self._expires_s
                    response = await self._ask(self.peer, self._expires_s)
                if response.status == _NO_OUTBOUND and self._outbound:
                    self._outbound = {}
                    response = await self._ask(self.peer, self._expires_s)
                if response.status not in (408, 503):
                    break  # else the next address of the registrar may answer (RFC 3263 section 4.3)
        except Unreachable as error:
            log.info("registrar not found", extra={"registrar": self._name, "why": str(error)})
            self.status = error.status
            self._became(False)
            return 0.0
        self.status = response.status
        granted_s = granted(response, self.contact, asked_s=self._expires_s) if 200 <= response.status < 300 else 0
        self.service_route = service_route(response) if granted_s > 0 else ()
        self._flow_s = response.headers.seconds("Flow-Timer")
        self._became(granted_s > 0)
        if granted_s > 0:
            return granted_s * random.uniform(*_REFRESH_SHARE)
        return float(response.headers.seconds("Retry-After"))

    async def _hosts_of_registrar(self) -> frozenset[str]:
        """Return the registrar's addresses. Behind an outbound proxy they need not be known."""
        try:
            return frozenset(each.host for each in await locate_all(self.registrar, ours=self._local.host))
        except Unreachable:
            return frozenset()

    async def _ask(self, peer: Peer, expires_s: int) -> Response:
        # As other user agents do: over UDP, outbound would need STUN.
        flow = {} if peer.transport == "UDP" else self._outbound
        contact = Address(self.contact, params=dict(flow))

        def make(headers: HeaderItems) -> Request:
            self._cseq += 1
            items = [
                ("Via", str(self._local.via(peer.transport))),
                *(("Route", route) for route in self.routes),
                ("Max-Forwards", "70"),
                ("From", str(Address(self.address).with_tag(self._tag))),
                ("To", f"<{self.address}>"),
                ("Call-ID", self._call_id),
                ("CSeq", f"{self._cseq} REGISTER"),
                ("Contact", str(contact)),
                ("Expires", str(expires_s)),
                ("Supported", "outbound, path" if flow else "path"),
                *headers,
            ]
            return Request("REGISTER", self._uri, Headers(items))

        return await self._client.ask(make, peer, auth=self._auth)

    def _became(self, registered: bool) -> None:
        outcome = (registered, 0 if registered else self.status)
        if outcome != self._logged:  # a repeated refusal is logged once
            self._logged = outcome
            log.log(
                logging.INFO if registered or self._closing else logging.WARNING,
                "registered" if registered else "not registered",
                extra={"registrar": self._name, "status": self.status},
            )
        if registered != self.registered:
            self.registered = registered
            self._on_change(self)


def credentials_of(config: RegistrationConfig) -> ClientAuth:
    """Return the credentials of an account."""
    password = config.password.get_secret_value() if config.password else ""
    return ClientAuth(config.auth_username or config.username, password, config.realm)


def instance(local: LocalAddress) -> str:
    """Return the URN of this gateway (``+sip.instance``, RFC 5626 section 4.1): the same one after a restart."""
    return uuid.uuid5(uuid.NAMESPACE_URL, str(local.contact("UDP"))).urn


def loose_route(proxy: Uri) -> str:
    """Return the value of Route by which a request visits a proxy (RFC 3261 section 8.1.2)."""
    return f"<{replace(proxy, user='', params={**proxy.params, 'lr': None}, headers='')}>"


def service_route(response: Response) -> tuple[str, ...]:
    """Return the route for our calls that a 2xx to REGISTER names (RFC 3608 section 6). Empty: none, or one that cannot
    be read or visits a strict router."""
    routes = response.headers.all("Service-Route")
    try:
        usable = all("lr" in Address.parse(route).uri.params for route in routes)
    except SipProtocolError:
        usable = False
    return routes if usable and len(routes) <= _MAX_ROUTES else ()


def granted(response: Response, contact: Uri, *, asked_s: int) -> int:
    """Return the seconds for which a 2xx to REGISTER keeps our contact (section 10.2.4). 0: it does not keep it.

    The ``expires`` of our own contact counts. If the registrar has rewritten it, the shortest of those with our user
    counts (another gateway may have the same account), or the only one.
    """
    found: list[Address] = []
    for text in response.headers.all("Contact"):
        try:
            found.append(Address.parse(text))
        except SipProtocolError:
            continue
    ours = [each for each in found if (each.uri.user, each.uri.host, each.uri.port) == _key(contact)]
    ours = ours[:1] or [each for each in found if each.uri.user == contact.user] or (found if len(found) == 1 else [])
    texts = [unquote(each.params.get("expires") or "") for each in ours]
    known = [int(text) for text in texts if text.isascii() and text.isdigit() and len(text) < 10]
    if known:
        return min(known)
    if found and not ours:
        return 0
    return response.headers.seconds("Expires") if "Expires" in response.headers else asked_s


def _key(uri: Uri) -> tuple[str, str, int | None]:
    return uri.user, uri.host, uri.port
