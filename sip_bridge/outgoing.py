"""Calls of ours, from the order to the answer (RFC 3261 sections 9, 13 and 8.1.3).

``OutgoingCall`` is one INVITE and what may come of it: early media, an answer, answers of several forks, a challenge,
a refusal, or our own giving up, which may cross the answer. ``Outgoing`` takes orders, knows where they may go and by
which trunk, follows redirections, and remembers how each ended.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import re
import secrets
import socket
from collections import OrderedDict
from collections.abc import Callable, Container, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.errors import Rejected
from gateway.seams.originate import Attempt, AttemptState, CallOrder
from sip_bridge.call import Host, SipCall, State, description_of
from sip_bridge.config import SipConfig, TrunkConfig
from sip_bridge.dialog import Dialog, SessionTimer, min_session_s, session_agreed, session_offer
from sip_bridge.errors import NotAcceptable, ProtocolError, SipError, Unreachable
from sip_bridge.io.endpoint import Endpoint
from sip_bridge.io.locate import locate
from sip_bridge.io.ports import PortPair
from sip_bridge.local import ALLOW, SUPPORTED, HeaderItems, Peer
from sip_bridge.message.digest import authorization, wants_fresh_nonce
from sip_bridge.message.parameters import Caller, headers_of, is_own, number_of
from sip_bridge.message.sdp import Agreed, SessionDescription
from sip_bridge.message.sip import REASONS, Address, Headers, Request, Response, Uri
from sip_bridge.targets import AllowedTargets, read_target
from sip_bridge.transaction import Act, Key, cancel_of

log = logging.getLogger(__name__)

_MAX_REDIRECTS = 5
_MAX_TRIES = 4
"""Of one INVITE: bare, with credentials for the target and for a proxy, once more for a stale nonce or a 422."""

_REASONS = {
    401: "not_authorised", 403: "declined", 404: "not_found", 407: "not_authorised", 408: "no_answer",
    410: "not_found", 415: "no_common_codec", 480: "no_answer", 484: "not_found", 486: "busy", 487: "cancelled",
    488: "no_common_codec", 503: "unavailable", 600: "busy", 603: "declined", 604: "not_found", 606: "no_common_codec",
    607: "declined", 608: "declined",
}  # fmt: skip
"""What an outcome is called; others are ``redirected`` (3xx), ``unavailable`` (5xx) or ``refused``."""


def reason_of(status: int) -> str:
    """A final status in a word."""
    return _REASONS.get(status, {3: "redirected", 5: "unavailable"}.get(status // 100, "refused"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an INVITE ended."""

    status: int
    """200, or why not."""
    reason: str = ""
    """In a word, where it was not answered."""
    elsewhere: tuple[Uri, ...] = ()
    """Contacts of a 3xx, best first."""


class Invites:
    """Whose INVITE is whose, as long as an answer to it may come.

    Args:
        expiry_s: 64*T1: for so long after one answer those of other forks may come (RFC 3261 section 13.2.2.4).
    """

    def __init__(self, endpoint: Endpoint, expiry_s: float) -> None:
        self._endpoint = endpoint
        self._expiry_s = expiry_s
        self._calls: dict[Key, OutgoingCall] = {}
        self._expiring: dict[Key, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, key: Key, call: OutgoingCall) -> None:
        """A new one."""
        self._calls[key] = call

    def get(self, key: Key | None) -> OutgoingCall | None:
        """The call that an answer is for."""
        return self._calls.get(key) if key else None

    def remove(self, key: Key) -> None:
        """It is refused: no more answers."""
        self._calls.pop(key, None)
        timer = self._expiring.pop(key, None)
        if timer:
            timer.cancel()

    def expire(self, key: Key) -> bool:
        """It is answered or cancelled: more answers may come, but not for ever. False: that was known already."""
        if key not in self._calls or key in self._expiring:
            return False
        self._expiring[key] = asyncio.get_running_loop().call_later(self._expiry_s, self._expired, key)
        return True

    def _expired(self, key: Key) -> None:
        self.remove(key)
        self._endpoint.forget(key)  # a cancelled one that was never answered has no timer of its own

    def close(self) -> None:
        """Forget all."""
        for key in list(self._calls):
            self.remove(key)


class OutgoingCall(SipCall):
    """A call to somebody.

    Args:
        uri: the Request-URI; also To.
        from_: ours.
        caller: as the session tells it.
        headers: of the INVITE, beside its own.
        invites: remembers whose INVITE is whose.
        on_progress: told of ``ringing`` and ``early_media``, with the status.
    """

    direction = "outbound"

    def __init__(
        self,
        host: Host,
        name: str,
        trunk: TrunkConfig,
        peer: Peer,
        ports: PortPair,
        *,
        uri: Uri,
        from_: Address,
        caller: Caller,
        route: str,
        headers: Sequence[tuple[str, str]],
        invites: Invites,
        on_progress: Callable[[AttemptState, int], None],
    ) -> None:
        super().__init__(host, name, trunk, peer, ports)
        self.caller = caller
        self.route = route
        self.outcome: asyncio.Future[Outcome] = self._loop.create_future()
        self._uri = uri
        self._from = from_.with_tag(secrets.token_hex(8))
        self._headers = tuple(headers)
        self._invites = invites
        self._on_progress = on_progress
        self._call_id = secrets.token_hex(16)
        self._cseq = 0
        self._tries = 0
        self._credentials: dict[str, str] = {}
        self._offer = b""
        self._invite: Request | None = None
        self._key: Key | None = None
        self._provisional = False
        self._early: dict[str, SessionDescription] = {}
        """Descriptions of provisional responses, by the fork's tag."""
        self._winner = ""
        self._declined: dict[str, tuple[Request, Peer]] = {}
        """ACKs of answers that we did not want, by the fork's tag."""

    @property
    def call_sid(self) -> str:
        """Also before there is a dialog."""
        return self._call_id

    def start(self) -> None:
        """Send the INVITE."""
        self._offer = self.negotiation.offer()
        self._later("answer", self._timeouts.answer, lambda: self._stop_calling("no_answer"))
        self._send_invite()

    def _send_invite(self) -> None:
        self._cseq += 1
        self._tries += 1
        items = [
            ("Via", str(self._host.local.via(self.peer.transport))),
            ("Max-Forwards", "70"),
            ("From", str(self._from)),
            ("To", f"<{self._uri}>"),
            ("Call-ID", self._call_id),
            ("CSeq", f"{self._cseq} INVITE"),
            self._contact,
            ALLOW,
            SUPPORTED,
            *(session_offer(self._timeouts.session, self._min_session_s) if self._timeouts.session else ()),
            *self._headers,
            *self._credentials.items(),
            ("Content-Type", "application/sdp"),
        ]
        self._invite = Request("INVITE", str(self._uri), Headers(items), self._offer)
        self._provisional = False
        self._key = self._host.endpoint.request(self._invite, self.peer)
        self._invites.add(self._key, self)

    # --- what comes back -------------------------------------------------------------------------------------------

    def on_response(self, key: Key | None, response: Response) -> None:
        """A response to the INVITE, of whichever fork, or to a later request."""
        if response.cseq.method != "INVITE" or key is None or key != self._key:
            super().on_response(key, response)
        elif response.status < 200:
            self._progress(response)
        elif response.status >= 300:
            self._invites.remove(key)
            self._refused(response)
        else:
            self._invites.expire(key)
            if self.state is State.EARLY:
                self._answered(response)
            elif response.to.tag == self._winner:
                super().on_response(key, response)  # our ACK was lost
            else:
                self._decline(response)

    def on_failed(self, key: Key, reason: Act) -> None:
        """No response at all, or it could not be sent (RFC 3261 section 8.1.3.1)."""
        if key != self._key:
            super().on_failed(key, reason)
            return
        self._invites.remove(key)
        if self.state is State.EARLY:
            self._fail(408 if reason is Act.TIMEOUT else 503, "unreachable")

    def _progress(self, response: Response) -> None:
        self._provisional = True
        if self.state is not State.EARLY:
            self._cancel()  # given up before there was anything to cancel
            return
        if response.status == 100:
            return
        early = False
        try:
            description = description_of(response)
            if description is not None and response.to.tag not in self._early:
                # The first fork that has sound is heard; which one answers is not known yet, so nothing is settled.
                if not self._early:
                    self.negotiation.agreed = copy.copy(self.negotiation).accept(description)
                    self.apply(self.negotiation.agreed)
                    early = True
                if len(self._early) < 10:
                    self._early[response.to.tag] = description
        except SipError as error:
            log.info("SIP early media refused", extra={"trunk": self.trunk_name, "why": str(error)})
        if early and self.trunk.early_media:
            self._begin_early()
        self._on_progress("early_media" if early or self._early else "ringing", response.status)

    def _begin_early(self) -> None:
        """The session hears what comes before the answer, and is there when it comes. It speaks after it."""
        try:
            self.session = self._host.begin(self)
        except Rejected as exc:
            log.info("call rejected", extra={"why": exc.code, "transport": "sip"})
            self._stop_calling("unavailable")
        else:
            self.session.on_held(True)

    def apply(self, agreed: Agreed) -> None:
        """As ``SipCall.apply``; before the answer nothing that we say is meant to be heard."""
        super().apply(agreed)
        if self.state is State.EARLY and self.session is not None:
            self.session.on_held(True)

    def _answered(self, response: Response) -> None:
        assert self._invite
        self._winner = response.to.tag
        try:
            self.dialog = Dialog.as_client(self._invite, response)
        except ProtocolError as error:
            log.info("SIP answer refused", extra={"trunk": self.trunk_name, "why": str(error)})
            self._fail(502, "refused")
            return
        self._stop("answer")
        self._peer_allows = response.headers.tokens("Allow")
        hop = self._hop(self.dialog)
        self._acked = (self._cseq, self._ack(self.dialog, hop), hop)
        self.state = State.UP
        self._host.joined(self)
        try:
            answer = description_of(response) or self._early.get(response.to.tag)
            if answer is None:
                raise ProtocolError("2xx without the answer to our offer (RFC 3261 section 13.2.1)")
            begun = self.outbound if self.session is not None else None
            agreed = self.negotiation.accept(answer)
            if begun not in (None, self.outbound):
                raise NotAcceptable(f"another fork answered with {self.outbound}, the session speaks {begun}")
            self.set_timer(self._agreed_timer(response))
            if self.session is None:
                self.session = self._host.begin(self)
            self.apply(agreed)
        except SipError as error:
            log.info("SIP answer refused", extra={"trunk": self.trunk_name, "why": str(error)})
            self._tell(Outcome(488, "no_common_codec"))
            self.end("no common codec", [("Reason", 'SIP;cause=488;text="Not Acceptable Here"')])
        except Rejected as exc:
            log.info("call rejected", extra={"why": exc.code, "transport": "sip"})
            self._tell(Outcome(503, "unavailable"))
            self.end("rejected")
        else:
            self._tell(Outcome(200))

    def _agreed_timer(self, response: Response) -> SessionTimer | None:
        try:
            return session_agreed(response)
        except ProtocolError as error:
            log.info("SIP session timer refused", extra={"why": str(error)})
            return None

    def _refused(self, response: Response) -> None:
        """A final refusal; its ACK is the transaction's."""
        if self.state is not State.EARLY:
            return
        if self._tries < _MAX_TRIES and self._may_try_again(response):
            self._send_invite()
            return
        elsewhere = _contacts(response) if response.status < 400 else ()
        self._fail(response.status, reason_of(response.status), elsewhere)

    def _may_try_again(self, response: Response) -> bool:
        assert self._invite
        if response.status == 422:
            try:
                self._min_session_s = max(self._min_session_s, min_session_s(response))
            except ProtocolError:
                return False
            return True
        answer = authorization(response, self._invite, self._auth) if self._auth else None
        if answer is None or (answer[0] in self._credentials and not wants_fresh_nonce(response)):
            return False
        self._credentials[answer[0]] = answer[1]
        return True

    # --- giving up -------------------------------------------------------------------------------------------------

    def _stop_calling(self, reason: str) -> None:
        self._tell(Outcome(487, reason))
        self.end(reason)

    def _give_up(self, reason: str, headers: HeaderItems) -> None:
        self._tell(Outcome(487, "cancelled"))
        if self._provisional:
            self._cancel()  # else at the first provisional response: before it, nobody would know the INVITE

    def _cancel(self) -> None:
        # Once; and without an answer to the INVITE it counts as cancelled after 64*T1 (section 9.1).
        if self._invite is not None and self._key is not None and self._invites.expire(self._key):
            self._host.endpoint.request(cancel_of(self._invite), self.peer)

    def _fail(self, status: int, reason: str, elsewhere: tuple[Uri, ...] = ()) -> None:
        self.rtp.close()
        session, self.session = self.session, None
        if session is not None:
            session.on_leg_closed(reason)
        self._release()
        self._tell(Outcome(status, reason, elsewhere))

    def _tell(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    def _decline(self, response: Response) -> None:
        """Another fork has answered too, or the answer has crossed our CANCEL: acknowledge it and hang up."""
        assert self._invite
        known = self._declined.get(response.to.tag)
        if known:
            self._host.endpoint.send(*known)
            return
        try:
            dialog = Dialog.as_client(self._invite, response)
        except ProtocolError as error:
            log.info("SIP answer refused", extra={"trunk": self.trunk_name, "why": str(error)})
            return
        hop = self._hop(dialog)
        self._declined[response.to.tag] = (self._ack(dialog, hop), hop)
        self._host.endpoint.request(dialog.request("BYE", self._host.local.via(hop.transport)), hop)

    def _ack(self, dialog: Dialog, hop: Peer) -> Request:
        number = self._cseq
        # The credentials of the INVITE, which the ACK cannot be challenged for (section 22.1).
        ack = dialog.request(
            "ACK", self._host.local.via(hop.transport), cseq=number, headers=list(self._credentials.items())
        )
        self._host.endpoint.send(ack, hop)
        return ack


def _contacts(response: Response) -> tuple[Uri, ...]:
    """Where a 3xx leads, by falling q (section 8.1.3.4)."""
    found: list[tuple[float, Uri]] = []
    for text in response.headers.all("Contact"):
        try:
            address = Address.parse(text)
            found.append((-float(address.params.get("q") or 1.0), address.uri))
        except (ProtocolError, ValueError):
            continue
    return tuple(uri for _, uri in sorted(found, key=lambda each: each[0]))


class Outgoing:
    """Places calls; implements ``gateway.seams.originate.Originator``.

    Args:
        host: the bridge.
        new_call_id: of a session to be.
        routes: those that there are.
        on_failed: told the reason of every call that was not answered, for the metric.
    """

    _REMEMBERED = 1000
    """Attempts that ended, the last ones, which may still be asked for."""

    def __init__(
        self,
        host: Host,
        *,
        new_call_id: Callable[[], str],
        routes: Container[str],
        on_failed: Callable[[str], None],
    ) -> None:
        self._host = host
        self._new_call_id = new_call_id
        self._routes = routes
        self._on_failed = on_failed
        self.allowed = AllowedTargets(host.config.allowed_targets)
        self._invites = Invites(host.endpoint, 64 * host.config.timeouts.t1)
        self._attempts: OrderedDict[str, Attempt] = OrderedDict()
        self._calling: dict[str, OutgoingCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks) + len(self._invites)

    async def place(self, order: CallOrder) -> Attempt:
        """As ``Originator``."""
        return (await self._begin(order))[0]

    async def _begin(self, order: CallOrder) -> tuple[Attempt, asyncio.Task[None]]:
        if order.route not in self._routes:
            raise Rejected(f"no route {order.route[:40]!r}", status=404, code="unknown_route", param="route")
        try:
            way = self._way(order)
            headers = [*_headers(order), *headers_of(order.custom_parameters, way.trunk.headers)]
            from_ = _from(order, way.trunk, self._host.config.advertised)
        except ProtocolError as error:
            raise Rejected(str(error), status=422, code="invalid_body", param="target") from None
        peer = await self._located(way)
        attempt = Attempt(call_id=self._new_call_id(), route=order.route)
        call = self._call(attempt, order, way, peer, from_, headers)
        self._remember(attempt)
        return attempt, self._own(self._carry(attempt, call, order, way, from_, headers))

    def _own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def place_for(self, order: CallOrder, tell: Callable[[int, str], None]) -> None:
        """Place a call for a peer that asked for it, and tell it status and phrase: 100, ringing, the outcome."""
        self._own(self._place_for(order, tell))

    async def _place_for(self, order: CallOrder, tell: Callable[[int, str], None]) -> None:
        tell(100, REASONS[100])
        try:
            attempt, task = await self._begin(order)
        except Rejected as exc:
            log.info("REFER not followed", extra={"why": exc.code})
            tell(exc.status, exc.code)
            return
        await task
        tell(attempt.status, REASONS.get(attempt.status, attempt.reason))

    def attempt(self, call_id: str) -> Attempt | None:
        """As ``Originator``."""
        return self._attempts.get(call_id)

    def cancel(self, call_id: str) -> bool:
        """As ``Originator``."""
        call = self._calling.get(call_id)
        if call is not None:
            call.end("hangup_by_api")
        return call is not None

    def on_response(self, key: Key | None, response: Response) -> bool:
        """True: it was for an INVITE of ours."""
        call = self._invites.get(key)
        if call is not None:
            call.on_response(key, response)
        return call is not None

    def on_failed(self, key: Key, reason: Act) -> bool:
        """True: it was an INVITE of ours."""
        call = self._invites.get(key)
        if call is not None:
            call.on_failed(key, reason)
        return call is not None

    def drop(self) -> None:
        """Give up every call that is not answered."""
        for call in list(self._calling.values()):
            call.end("server is closing")

    async def aclose(self) -> None:
        """Give up, and wait for what that begins."""
        self.drop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._invites.close()

    # --- where to --------------------------------------------------------------------------------------------------

    def _way(self, order: CallOrder) -> _Way:
        trunks = self._host.config.trunks
        if order.trunk and order.trunk not in trunks:
            raise Rejected(f"no trunk {order.trunk[:40]!r}", status=404, code="unknown_trunk", param="trunk")
        proxies = {name: Uri.parse(trunk.proxy) for name, trunk in trunks.items() if trunk.proxy}
        if order.trunk and order.trunk not in proxies:
            raise Rejected(f"trunk {order.trunk} has no proxy", status=422, code="invalid_body", param="trunk")
        first = order.trunk or next(iter(proxies), "")
        uri = read_target(order.target, _domain(proxies[first]) if first else "")
        self._check(uri)
        name = order.trunk or next((name for name, proxy in proxies.items() if _leads_to(proxy, uri)), "")
        if name:
            return _Way(name, trunks[name], uri, proxies[name])
        return _Way("", TrunkConfig.model_construct(), uri, uri)

    def _check(self, uri: Uri) -> None:
        if not self.allowed.allow(uri):
            raise Rejected(
                "target is none of sip.allowed_targets", status=403, code="target_not_allowed", param="target"
            )

    async def _located(self, way: _Way) -> Peer:
        if not self._host.reachable(way.name):
            raise Rejected(f"trunk {way.name} does not answer", status=503, code="unreachable", param="trunk")
        try:
            return await locate(way.next_hop, family=_family(self._host.config))
        except Unreachable as error:
            raise Rejected(str(error), status=503, code="unreachable", param="target") from None

    # --- on the way ------------------------------------------------------------------------------------------------

    def _call(
        self,
        attempt: Attempt,
        order: CallOrder,
        way: _Way,
        peer: Peer,
        from_: Address,
        headers: Sequence[tuple[str, str]],
    ) -> OutgoingCall:
        def progress(state: AttemptState, status: int) -> None:
            attempt.state, attempt.status = state, status

        call = OutgoingCall(
            self._host,
            way.name,
            way.trunk,
            peer,
            self._host.reserve(way.name, way.trunk),
            uri=way.uri,
            from_=from_,
            caller=Caller(number_of(from_.uri), number_of(way.uri), parameters=dict(order.custom_parameters)),
            route=order.route,
            headers=headers,
            invites=self._invites,
            on_progress=progress,
        )
        call.session_id = attempt.call_id
        self._calling[attempt.call_id] = call
        call.start()
        return call

    async def _carry(
        self,
        attempt: Attempt,
        call: OutgoingCall,
        order: CallOrder,
        way: _Way,
        from_: Address,
        headers: Sequence[tuple[str, str]],
    ) -> None:
        """See an attempt through, to wherever it is redirected."""
        tried = {str(way.uri)}
        ahead: list[Uri] = []
        try:
            outcome = await call.outcome
            while 300 <= outcome.status < 400 and len(tried) <= _MAX_REDIRECTS:
                ahead = [uri for uri in (*outcome.elsewhere, *ahead) if str(uri) not in tried]
                if not ahead:
                    break
                uri = ahead.pop(0)
                tried.add(str(uri))
                try:
                    self._check(uri)
                    elsewhere = replace(way, uri=uri, next_hop=uri)
                    peer = await self._located(elsewhere)
                    outcome = await self._call(attempt, order, elsewhere, peer, from_, headers).outcome
                except Rejected as exc:
                    log.info("SIP redirection not followed", extra={"why": exc.code})
        finally:
            self._calling.pop(attempt.call_id, None)
        attempt.status = outcome.status
        if outcome.status == 200:
            attempt.state = "answered"
            self._attempts.pop(attempt.call_id, None)  # from here on its session is what is asked for
        else:
            attempt.state, attempt.reason = "failed", outcome.reason
            self._on_failed(outcome.reason)
            log.info("call not answered", extra={"call": attempt.call_id, "status": outcome.status})

    def _remember(self, attempt: Attempt) -> None:
        self._attempts[attempt.call_id] = attempt
        while len(self._attempts) > self._REMEMBERED + len(self._calling):
            self._attempts.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _Way:
    """How a target is reached."""

    name: str
    """Of the trunk; empty: none, the target is called directly."""
    trunk: TrunkConfig
    uri: Uri
    next_hop: Uri


def _domain(proxy: Uri) -> str:
    return proxy.host if proxy.port is None else f"{proxy.host}:{proxy.port}"


def _leads_to(proxy: Uri, uri: Uri) -> bool:
    return proxy.host == uri.host and uri.port in (None, proxy.port)


def _family(config: SipConfig) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in config.host else socket.AF_INET


def _headers(order: CallOrder) -> list[tuple[str, str]]:
    for name, value in order.headers.items():
        if is_own(name) or not re.fullmatch(r"[A-Za-z0-9.!%*_+`'~-]{1,100}", name) or re.search(r"[\r\n\0]", value):
            raise Rejected(
                f"header {name[:40]!r} cannot be given: it is no header name, SIP's own, or its value has a line break",
                status=422,
                code="invalid_body",
                param="headers",
            )
    return list(order.headers.items())


def _from(order: CallOrder, trunk: TrunkConfig, host: str) -> Address:
    literal = f"[{host}]" if ":" in host else host
    own = Uri.parse(trunk.from_uri or f"sip:{trunk.username or 'talkspurt'}@{literal}")
    if not order.from_:
        return Address(own)
    try:
        return Address(read_target(order.from_, _domain(own)))
    except ProtocolError as error:
        raise Rejected(f"from: {error}", status=422, code="invalid_body", param="from") from None
