"""The SIP server: one endpoint and the calls on it.

The bridge passes each message to its call, makes calls from the INVITEs that it admits, and refuses the others at
little cost.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
import socket
import ssl
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any

from gateway.calling.policy import CallingPolicy
from gateway.errors import Rejected
from gateway.listener.certificates import Certificates
from gateway.listener.source_limit import SourceLimit
from gateway.seams.end_cause import EndCause
from gateway.seams.leg import CallEvents, RtpReport
from gateway.seams.originate import CallOrder, FollowPlaced, NoPlacedCalls
from gateway.seams.sip_state import ProxyState, RegistrationState, SipState, TrunkState
from sip_bridge.call import SipCall, SipIncomingCall
from sip_bridge.config import SipConfig, TrunkConfig
from sip_bridge.dialog.dialog import Dialog, DialogId, Refusal, dialog_id
from sip_bridge.dialog.invite import Invitation, InviteState, invitation_of
from sip_bridge.dialog.transaction import Act, Key, Timing
from sip_bridge.errors import NotAcceptable, PortsExhausted, SipProtocolError
from sip_bridge.io.client import Client
from sip_bridge.io.endpoint import Endpoint, Limits
from sip_bridge.io.pings import PING_S, TrunkPings
from sip_bridge.io.ports import PortPair, PortPool
from sip_bridge.io.shared_address import SharedAddress
from sip_bridge.io.tls import client_context, server_context
from sip_bridge.local import LocalAddress, Peer
from sip_bridge.message.digest import ServerAuth
from sip_bridge.message.referral import Referral
from sip_bridge.message.replaces import read_replaces
from sip_bridge.message.sip import Address, Request, Response, Uri, response_to
from sip_bridge.next_hops import NextHops
from sip_bridge.outgoing import Outgoing, Referred
from sip_bridge.registration import Registration
from sip_bridge.siprec.client import RecordingClient
from sip_bridge.targets import read_target
from sip_bridge.trunks import SourceStanding, Trunk, Trunks

log = logging.getLogger(__name__)

_SOURCES = 10_000
_IDLE_S = 600.0
"""Silence after which a connection without calls and registrations is closed, seconds."""
_ENDED = 1000
"""Number of ended dialogs that are remembered."""
_RETRY = (("Retry-After", "5"),)
_REDIRECTING_PARAMS = frozenset({"maddr", "method"})
"""URI parameters that send a request elsewhere than to the URI's host, or change its method."""
_POLICY_PARAMS = frozenset({"transport", "user"})


class SipBridge:
    """Makes sessions of SIP calls. Implements the endpoint's ``User`` and the calls' ``Host``.

    Args:
        calling: decides which targets may be called.
        begin: makes the session of a call. Raises ``Rejected``.
        check_room: raises ``Rejected`` if there is no room for one more call.
        on_report: takes figures of received RTP.
        on_rejected: takes the reason of each refused call, for the metric.
        on_cause: takes the cause of each failed attempt that had no session, for the metric.
        on_refer: takes direction and outcome of each REFER in a call, for the metric.
        placed: tells the progress of placed calls. None: no one wants to know.
        new_call_id: makes the session id of an outgoing call.
        routes: names of the routes that an outgoing call may use.
        ready: returns True if OPTIONS may be answered with 200.
        shared: the address that the workers share. None: this is the only worker, and it listens itself.
        secret: signs the nonces of our challenges, the same in all workers. Empty: a random one.
        elsewhere: fetches another worker's ``describe`` of a call. Returns None if no other worker has the call.
        frames_first: sends the audio frames that are due, between two messages.
        on_recording_lost: counts copies of calls that a session recording server did not take to the end, by reason.
    """

    def __init__(
        self,
        config: SipConfig,
        calling: CallingPolicy,
        *,
        begin: Callable[[SipCall], CallEvents],
        check_room: Callable[[], None],
        on_report: Callable[[RtpReport], None],
        on_rejected: Callable[[str], None],
        on_cause: Callable[[EndCause], None] = lambda cause: None,
        on_refer: Callable[[str, str], None] = lambda direction, outcome: None,
        placed: FollowPlaced | None = None,
        new_call_id: Callable[[], str] = lambda: "",
        routes: Container[str] = (),
        ready: Callable[[], bool] = lambda: True,
        shared: SharedAddress | None = None,
        secret: bytes = b"",
        elsewhere: Callable[[str], Awaitable[dict[str, Any] | None] | None] | None = None,
        frames_first: Callable[[], None] = lambda: None,
        on_recording_lost: Callable[[str], None] = lambda reason: None,
    ) -> None:
        workers = shared.workers if shared is not None else 1
        timeouts, limits, tls = config.timeouts, config.limits.share(workers), config.tls
        self.config = config
        client_tls = client_context(tls.certificate, tls.key, tls.authorities) if tls else client_context()
        self.endpoint = Endpoint(
            self,
            timing=Timing(timeouts.t1_s, timeouts.t2_s, timeouts.t4_s),
            limits=Limits(
                requests_per_s=limits.requests_per_s,
                burst=limits.burst,
                sources=_SOURCES,
                connections=limits.connections,
                transactions=limits.transactions,
                idle_s=_IDLE_S,
            ),
            host="" if ipaddress.ip_address(config.host).is_unspecified else config.host,
            client_tls=client_tls,
            ready=ready,
            frames_first=frames_first,
        )
        self.trunks = config.trunks_with_accounts()
        """The trunks by name, with the accounts with which they call."""
        self._shared = shared
        self._elsewhere = elsewhere
        self._client_tls = client_tls
        self._server_tls: ssl.SSLContext | None = None
        self._certificates: Certificates | None = None
        self.local = LocalAddress(config.advertised, config.port)
        """The address at which peers reach us. Its ports are known after ``start``."""
        self.client = Client(self.endpoint)
        self._begin = begin
        self._calling = calling
        self._check_room = check_room
        self._on_report = on_report
        self.on_refer = on_refer
        self._on_rejected = on_rejected
        self._ports = PortPool(config.host, *config.rtp_range)
        self._trunks = Trunks(
            _trunks(config),
            ServerAuth(config.realm, secret or secrets.token_bytes(32)),
            calls=SourceLimit(per_s=limits.calls_per_s, burst=limits.calls_burst, sources=_SOURCES),
            failures=SourceLimit(per_s=0.2 / workers, burst=max(1, 10 // workers), sources=_SOURCES),
        )
        self._calls: dict[SipCall, DialogId] = {}
        self._dialogs: dict[DialogId, SipCall] = {}
        self._ended: OrderedDict[DialogId, None] = OrderedDict()
        """The dialogs that ended last. A call that would replace one is declined."""
        self._invites: dict[Key, SipIncomingCall] = {}
        self._invitations: set[Invitation] = set()
        self._of_trunk: Counter[str] = Counter()
        self._of_trunk_elsewhere: Mapping[str, int] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called when ``state`` or ``of_trunk`` has changed, so that the other workers are told."""
        self._asked: dict[Key, SipCall] = {}
        self.registrations: list[Registration] = []
        self._pings: dict[str, TrunkPings] = {}
        self.hops = NextHops(self.trunks, lambda: self.registrations, self._pings)
        """The next hops of the trunks' calls."""
        self.outgoing = Outgoing(
            self,
            calling,
            new_call_id=new_call_id,
            routes=routes,
            on_failed=on_rejected,
            on_cause=on_cause,
            placed=NoPlacedCalls() if placed is None else placed,
        )

        self.recordings = RecordingClient(self, lambda: self._ports.take(), on_lost=on_recording_lost)
        """Copies calls to session recording servers."""

    # --- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start to listen.

        Raises:
            OSError: the address cannot be bound.
        """
        shared, tls = self._shared, self.config.tls
        if shared is None:
            await self.endpoint.start(self.config.host, self.config.port)
        else:
            self.endpoint.join(shared)
        if tls is not None:
            self._server_tls = context = server_context(tls.certificate, tls.key, tls.authorities)
            if shared is None:
                await self.endpoint.start_tls(self.config.host, tls.port, context)
            self._certificates = Certificates([context, self._client_tls], tls.certificate, tls.key, tls.authorities)
            self._certificates.start()
        mark = shared.mark if shared is not None else ""
        self.local = LocalAddress(self.config.advertised, self.endpoint.port, self.endpoint.tls_port, mark)
        self.registrations = [
            Registration(each.at(registrar), self.client, self.local, flow=flow, on_change=lambda _: self.on_change())
            for each in self.config.registrations
            for flow, registrar in enumerate(each.registrars, 1)
        ]
        self._pings.update(
            (name, TrunkPings(name, trunk.pinged, self.client, self.local, every_s=trunk.ping_s or PING_S))
            for name, trunk in self.config.trunks.items()
            if trunk.ping_s or len(trunk.pinged) > 1
        )
        if self.is_first:
            for registration in self.registrations:
                registration.start()
            for pings in self._pings.values():
                pings.start()
        log.info("SIP is listening", extra={"host": self.config.host, "port": self.endpoint.port})

    async def adopt(self, connection: socket.socket, *, tls: bool) -> None:
        """Serve a TCP or TLS connection that another process has accepted."""
        await self.endpoint.adopt(connection, self._server_tls if tls else None)

    def drain(self) -> None:
        """Refuse new calls, and answer OPTIONS with 503."""
        self.endpoint.draining = True

    async def aclose(self) -> None:
        """End the remaining calls, wait briefly for their last answers, and close the sockets."""
        self.drain()
        await asyncio.gather(*(pings.close() for pings in self._pings.values()))
        if self.is_first:
            await asyncio.gather(*(registration.close() for registration in self.registrations))
        for call in list(self._calls):
            call.end("server is closing")
        self.outgoing.drop()
        self.recordings.drop()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 4 * self.config.timeouts.t1_s
        while (self._asked or len(self.outgoing)) and loop.time() < deadline:  # noqa: ASYNC110 - the last answers, one by one
            await asyncio.sleep(0.01)
        for call in list(self._calls):
            call.abandon()  # this also ends a call that still waits for an ACK
        await self.outgoing.aclose()
        await self.recordings.aclose()
        if self._certificates is not None:
            await self._certificates.aclose()
        await self.endpoint.close()

    def __iter__(self) -> Iterator[SipCall]:
        return iter(list(self._calls))

    @property
    def kept(self) -> dict[str, int]:
        """The size of each table, by name. All are 0 again after the last call."""
        return {
            "calls": len(self._calls),
            "dialogs": len(self._dialogs),
            "invites": len(self._invites),
            "invitations": len(self._invitations),
            "asked": len(self._asked),
            "outgoing": len(self.outgoing),
            "recordings": len(self.recordings),
            "transactions": self.endpoint.transactions,
            "ports": self._ports.in_use,
        }

    @property
    def dropped(self) -> dict[str, int]:
        """The number of SIP messages that were dropped or refused since the start, by reason."""
        unsent = {"unsent": self._shared.unsent} if self._shared is not None else {}
        return {**self.endpoint.counts, **unsent}

    # --- state shared by several workers -----------------------------------------------------------------------------

    @property
    def is_first(self) -> bool:
        """True in the first worker (or the only one), which registers and checks the trunks by OPTIONS."""
        return self._shared is None or self._shared.worker == 0

    @property
    def of_trunk(self) -> dict[str, int]:
        """Number of calls in this worker for each trunk with ``max_calls``."""
        return {name: count for name, count in self._of_trunk.items() if count and self._most(name)}

    def _most(self, trunk: str) -> int:
        return self.config.trunks[trunk].max_calls if trunk in self.config.trunks else 0

    def hear(self, of_trunk: Mapping[str, int], found: Mapping[str, Any]) -> None:
        """Take the state of the other workers.

        Args:
            of_trunk: the sums of their ``of_trunk``.
            found: ``found`` of the first worker. Empty (it has stopped or just started): the present state is kept.
        """
        self._of_trunk_elsewhere = of_trunk
        if self.is_first or not found:
            return
        for registration, known in zip(self.registrations, found["registrations"], strict=True):
            if known is not None:
                registration.registered, peer, hosts, route = known
                registration.peer, registration.hosts = Peer(*peer) if peer else None, frozenset(hosts)
                registration.service_route = tuple(route)
        for name, alive in found["alive"].items():
            for pings, answers in zip(self._pings[name].proxies.values(), alive, strict=True):
                pings.alive = answers

    @property
    def found(self) -> dict[str, Any]:
        """The results that only the first worker has, as JSON for the others: registrations, and trunks that answer."""
        if not self.is_first:
            return {}
        return {
            "registrations": [
                [each.registered, astuple(each.peer) if each.peer else None, sorted(each.hosts), each.service_route]
                if each.status
                else None
                for each in self.registrations
            ],
            "alive": {name: [each.alive for each in pings.proxies.values()] for name, pings in self._pings.items()},
        }

    @property
    def state(self) -> SipState:
        """The state of registrations and trunks. Only the first worker reports it."""
        if not self.is_first:
            return SipState()
        return SipState(
            tuple(
                RegistrationState(each.config.registrars[0], each.config.trunk, each.registered, each.status)
                for each in self.registrations
            ),
            tuple(
                TrunkState(
                    name,
                    pings.answers,
                    tuple(ProxyState(proxy, each.alive) for proxy, each in pings.proxies.items()),
                )
                for name, pings in self._pings.items()
            ),
        )

    # --- the endpoint's user ---------------------------------------------------------------------------------------

    def standing(self, peer: Peer) -> SourceStanding:
        """Return the standing of a peer: known, unproven or a stranger."""
        if not peer.host:
            return SourceStanding.STRANGER  # the connection closed before its address was read
        if any(peer.host in each.hosts for each in self.registrations):
            return SourceStanding.KNOWN
        return self._trunks.standing(peer.host, self.endpoint.certificate_names(peer))

    def on_request(self, key: Key, request: Request, peer: Peer) -> None:
        """Handle a new request, in a dialog or outside."""
        if request.method != "INVITE" and "Replaces" in request.headers:  # RFC 3891 section 3
            self.endpoint.dismiss(key, request, response_to(request, 400, to_tag="none"), peer)
            return
        if request.to.tag:
            named = dialog_id(request, received=True)
            call = self._dialogs.get(named) or self.outgoing.early(named)
            if call is None and self.recordings.on_request(key, request):
                return
            if call is None:
                self.endpoint.dismiss(key, request, response_to(request, 481), peer)
                return
            try:
                call.on_request(key, request, peer)
            except Exception:  # a bug in one call ends only that call, and no transaction stays open
                log.exception("SIP request failed", extra={"call": call.session_id, "method": request.method})
                self.endpoint.respond(key, response_to(request, 500))
                call.end("internal error")
            return
        admitted = self._admit(request, peer)
        if not isinstance(admitted, str):
            self._rejected("unknown" if admitted is None else f"sip_{admitted.status}", peer)
            answer = None
            if admitted is not None:
                answer = response_to(request, admitted.status, to_tag="refused", headers=admitted.headers)
            self.endpoint.dismiss(key, request, answer, peer)
        elif request.method != "INVITE":
            status = 603 if request.method == "REFER" else 481  # a REFER outside a call is readable, and never followed
            self.endpoint.respond(key, response_to(request, status, to_tag="none"))
        else:
            refusal = self._invited(key, request, peer, admitted)
            if refusal is not None:
                tag = self.local.mark + secrets.token_hex(4)
                self.endpoint.respond(key, response_to(request, refusal.status, to_tag=tag, headers=refusal.headers))

    def _admit(self, request: Request, peer: Peer) -> str | Refusal | None:
        """Return the name of the trunk that sent this request; else a refusal or None, as ``Trunks.admit`` does."""
        if not peer.host:
            return None
        names = self.endpoint.certificate_names(peer)
        bringing = [each for each in self.registrations if each.brings(peer.host)]
        named = [each for each in bringing if each.names(request.uri)]
        if not named and self._trunks.standing(peer.host, names) is not SourceStanding.KNOWN:
            named = bringing
        if named:
            return named[0].config.trunk
        admitted = self._trunks.admit(
            request, peer.host, certificate_names=names, now=time.monotonic(), wall=time.time()
        )
        if not isinstance(admitted, Trunk):
            return admitted
        if admitted.password:
            self.endpoint.keep(peer)
        return admitted.name

    def on_ack(self, request: Request) -> None:
        """Handle the ACK of a 2xx."""
        call = self._dialogs.get(dialog_id(request, received=True))
        if call is not None:
            call.on_ack(request)
        else:
            self.recordings.on_ack(request)

    def on_cancel(self, invite: Key, cancel: Request) -> None:
        """Handle the CANCEL of an INVITE."""
        call = self._invites.get(invite)
        if call is not None:
            call.on_cancel(cancel)

    def on_response(self, key: Key | None, response: Response) -> None:
        """Handle a response to our request."""
        if self.client.on_response(key, response) or self.outgoing.on_response(key, response):
            return
        call = self._asked.get(key) if key else None
        if call is not None and response.status >= 200:
            assert key
            del self._asked[key]
        call = call or self._dialogs.get(dialog_id(response, received=True))
        if call is not None:
            call.on_response(key, response)
        else:
            self.recordings.on_response(response)

    def on_failed(self, key: Key, reason: Act) -> None:
        """Handle a request of this server that got no answer."""
        if self.client.on_failed(key, reason) or self.outgoing.on_failed(key, reason):
            return
        call = self._asked.pop(key, None)
        if call is not None:
            call.on_failed(key, reason)

    def needs_connection(self, peer: Peer) -> bool:
        """Return True if a call, its copy or a registration uses the connection with this peer."""
        if self.recordings.uses(peer) or any(call.uses(peer) for call in self._calls):
            return True
        return any(each.registered and each.peer == peer for each in self.registrations)

    def on_disconnected(self, peer: Peer) -> None:
        """Register again at once if a registration used the lost connection: calls for it come only there."""
        for registration in self.registrations:
            if registration.peer == peer:
                registration.renew()

    # --- new calls -------------------------------------------------------------------------------------------------

    def _invited(self, key: Key, request: Request, peer: Peer, name: str) -> Refusal | None:
        if invitation_of(request) in self._invitations:
            return Refusal(482)
        config, call = self.trunks[name], None
        refusal: Refusal | None
        try:
            replaced = self._replaced(request, config.route)
            if isinstance(replaced, Refusal):
                self._rejected(f"sip_{replaced.status}", peer)
                return replaced
            ports = self.reserve(name, config) if replaced is None else self._ports.take()
            self.endpoint.respond(key, response_to(request, 100))
            call = SipIncomingCall(self, name, config, peer, ports, key, request, replaced)
            self._invites[key] = call
            if self._shared is not None and peer.transport != "UDP":
                self._shared.tell_begun(request.call_id, peer)
            self._invitations.add(call.invitation)
            self.joined(call)
            refusal = call.start()
        except (Rejected, PortsExhausted) as exc:
            self._rejected(exc.code if isinstance(exc, Rejected) else "no_ports", peer, str(exc))
            refusal = Refusal(503, _RETRY)
        except (SipProtocolError, NotAcceptable) as exc:
            self._rejected(f"sip_{exc.status}", peer, str(exc))
            refusal = Refusal(exc.status, (("Accept", "application/sdp"),) if exc.status == 415 else ())
        except Exception:  # a bug in one call ends only that call
            log.exception("SIP call failed")
            self._rejected("internal", peer)
            refusal = Refusal(500)
        if refusal is not None and call is not None:
            call.abandon()
        return refusal

    def _replaced(self, invite: Request, route: str) -> SipCall | Refusal | None:
        """Return the call that an INVITE replaces, or why it cannot (RFC 3891 section 3). None: it replaces none.

        Raises:
            SipProtocolError: see ``read_replaces``.
        """
        wanted = read_replaces(invite)
        if wanted is None:
            return None
        # The tag 0 also stands for none, which peers of RFC 2543 have.
        tags = (wanted.from_tag, "") if wanted.from_tag == "0" else (wanted.from_tag,)
        named = [(wanted.call_id, wanted.to_tag, tag) for tag in tags]
        calls = (self._dialogs.get(each) or self.outgoing.early(each) for each in named)
        call = next((each for each in calls if each is not None), None)
        is_early = call is not None and call.state is InviteState.EARLY
        if call is None or (is_early and isinstance(call, SipIncomingCall)):
            return Refusal(603 if any(each in self._ended for each in named) else 481)
        if not self._calling.may_join(route, call.route):
            return Refusal(403)
        if wanted.early_only and not is_early:
            return Refusal(486)
        return call if is_early or call.session is not None else Refusal(603)

    def _rejected(self, reason: str, peer: Peer, why: str = "") -> None:
        self._on_rejected(reason)
        log.info("call rejected", extra={"why": why or reason, "transport": "sip", "source": peer.host})

    def reserve(self, name: str, trunk: TrunkConfig) -> PortPair:
        """Reserve ports for one more call of a trunk. Raises ``Rejected`` if there is no room."""
        self._check_room()
        if trunk.max_calls and self._of_trunk[name] + self._of_trunk_elsewhere.get(name, 0) >= trunk.max_calls:
            raise Rejected(f"trunk {name} has max_calls ({trunk.max_calls}) calls", status=503, code="trunk_full")
        try:
            return self._ports.take()
        except PortsExhausted as exc:
            raise Rejected(str(exc), status=503, code="no_ports", retry_after_s=5) from None

    # --- the calls' host -------------------------------------------------------------------------------------------

    def begin(self, call: SipCall) -> CallEvents:
        """Make a call's session."""
        return self._begin(call)

    def joined(self, call: SipCall) -> None:
        """Register the call under its dialog."""
        self._calls[call] = call.dialog.id
        self._of_trunk[call.trunk_name] += 1
        self._dialogs[call.dialog.id] = call
        if self._most(call.trunk_name):
            self.on_change()

    def asked(self, key: Key, call: SipCall) -> None:
        """Register the transaction of a call's request, so that its responses reach the call."""
        self._asked[key] = call

    def left(self, call: SipCall) -> None:
        """Forget a call, except for the answers to its last request."""
        dialog = self._calls.pop(call, None)
        if dialog is not None:
            del self._dialogs[dialog]
            self._ended[dialog] = None
            while len(self._ended) > _ENDED:
                self._ended.popitem(last=False)
            self._of_trunk[call.trunk_name] -= 1
            if self._most(call.trunk_name):
                self.on_change()
        if isinstance(call, SipIncomingCall):
            self._invites.pop(call.key, None)
            self._invitations.discard(call.invitation)
        for key in call.protocol.requests.open_invites:
            self._asked.pop(key, None)

    def transfer_target(self, call: SipCall, target: str) -> tuple[Uri, Dialog | None]:
        """Return the target of a transfer as a URI, and the dialog to replace if it is another live call."""
        other = self._described(target)
        if other is not None and other.dialog is not call.dialog and self._calling.may_join(call.route, other.route):
            return self._joined(call, other)
        return read_target(target, call.domain), None

    def transfer_elsewhere(self, call: SipCall, target: str) -> Awaitable[tuple[Uri, Dialog | None]] | None:
        """Return the same for a target that is a call of another worker. None: it is none."""
        elsewhere = self._elsewhere(target) if self._elsewhere is not None else None
        return self._joined_elsewhere(call, elsewhere) if elsewhere is not None else None

    async def _joined_elsewhere(
        self, call: SipCall, elsewhere: Awaitable[dict[str, Any] | None]
    ) -> tuple[Uri, Dialog | None]:
        found = await elsewhere
        other = _OtherCall.read(found) if found is not None else None
        if other is None or not self._calling.may_join(call.route, other.route):
            raise SipProtocolError("target is no live call of this server")
        return self._joined(call, other)

    def describe(self, call_id: str) -> dict[str, Any] | None:
        """Return the data of a live call that another worker needs for a transfer to it, as JSON. None: there is no
        such call here."""
        other = self._described(call_id)
        return other.written() if other is not None else None

    def _described(self, call_id: str) -> _OtherCall | None:
        for each in self._calls:
            if each.session and each.session.call_id == call_id:
                proxies = (Uri.parse(proxy).host for proxy in each.trunk.proxies)
                return _OtherCall(each.route, each.dialog, (each.peer.host, *proxies))
        return None

    def _joined(self, call: SipCall, other: _OtherCall) -> tuple[Uri, Dialog]:
        """Return the Contact and dialog of the other call, after checking the Contact, which the other peer chose
        itself."""
        contact = other.dialog.target
        if contact.headers or not contact.params.keys().isdisjoint(_REDIRECTING_PARAMS):
            raise Rejected("the other call's Contact leads elsewhere", status=403, code="target_not_allowed")
        at_peer = bool(contact.host) and contact.host.strip("[]") in other.hosts
        self._calling.check_joined(
            str(replace(contact, params={})), at_peer=at_peer, route=call.route, domain=call.domain
        )
        return contact, other.dialog

    def refer(self, call: SipCall, referral: Referral) -> None:
        """Place the call that a peer requested by REFER, with the route and parameters of the peer's own call. It shows
        our number in that call, unless the trunk's account shows another."""
        order = CallOrder(
            target=str(_plain(referral.target)),
            route=call.route,
            custom_parameters=call.caller.parameters,
            parent_call_sid=call.call_sid,
        )
        ours = call.caller.from_ if call.direction == "outbound" else call.caller.to
        self.outgoing.place_for(order, partial(call.tell_referred, referral), Referred(referral, ours))

    def may_follow(self, call: SipCall, referral: Referral) -> bool:
        """Return True if the calling policy allows the target of a peer's REFER."""
        try:
            self._calling.target(
                str(_plain(referral.target)), route=call.route, transport="sip", domain=self.outgoing.domain
            )
        except Rejected:
            return False
        return True

    def on_report(self, report: RtpReport) -> None:
        """Report figures of received RTP."""
        self._on_report(report)


@dataclass(frozen=True, slots=True)
class _OtherCall:
    """A live call that another call may be joined with."""

    route: str
    dialog: Dialog
    hosts: tuple[str, ...]
    """The hosts that the call's messages go to and come from."""

    def written(self) -> dict[str, Any]:
        """Return it as JSON, with only the dialog fields that a REFER needs."""
        dialog = self.dialog
        tags = {"local": dialog.local.tag, "remote": dialog.remote.tag}
        return {
            "route": self.route,
            "hosts": self.hosts,
            "call_id": dialog.call_id,
            "target": str(dialog.target),
            **tags,
        }

    @classmethod
    def read(cls, written: dict[str, Any]) -> _OtherCall:
        """Read the result of another worker's ``written``."""
        target = Uri.parse(written["target"])
        local, remote = (Address(target).with_tag(written[side]) for side in ("local", "remote"))
        dialog = Dialog(
            call_id=written["call_id"], local=local, remote=remote, target=target, routes=(), owns_call_id=False
        )
        return cls(written["route"], dialog, tuple(written["hosts"]))


def _plain(target: Uri) -> Uri:
    """Return a target with only the parameters that the calling policy reads. The others are for the target itself, as
    in the Contact of a phone."""
    return replace(target, params={name: value for name, value in target.params.items() if name in _POLICY_PARAMS})


def _trunks(config: SipConfig) -> list[Trunk]:
    return [
        Trunk(
            name=name,
            networks=tuple(ipaddress.ip_network(address, strict=False) for address in trunk.addresses),
            username=trunk.username,
            password=trunk.password.get_secret_value() if trunk.password else "",
            certificate_names=frozenset(name.lower() for name in trunk.certificate_names),
            route=trunk.route,
        )
        for name, trunk in config.trunks.items()
        if trunk.asks_for_something
    ]
