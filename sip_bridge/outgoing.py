"""Outgoing calls: takes orders, chooses the trunk, follows redirections, and remembers the outcome of each call. The
``InviteClient`` of a call decides on its messages."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gateway.calling.policy import CallingPolicy
from gateway.errors import Rejected
from gateway.seams.calling import Allowed
from gateway.seams.end_cause import EndCause
from gateway.seams.messages import ProgressEvent
from gateway.seams.originate import Attempt, AttemptState, CallOrder, FollowPlaced, SecondLeg
from sip_bridge.call import Host, SipCall
from sip_bridge.config import TrunkConfig
from sip_bridge.dialog.dialog import DialogId
from sip_bridge.dialog.effects import Effect, Invite, Joined, Left, Outcome, Progress, Settled
from sip_bridge.dialog.invite_client import InviteClient
from sip_bridge.dialog.transaction import Act, Key
from sip_bridge.errors import SipProtocolError, Unreachable
from sip_bridge.io.endpoint import Endpoint
from sip_bridge.io.ports import PortPair
from sip_bridge.local import Peer
from sip_bridge.message.parameters import (
    USER_TO_USER,
    SipCaller,
    custom_headers,
    headers_of,
    is_number,
    is_own,
    number_of,
)
from sip_bridge.message.referral import Referral
from sip_bridge.message.replaces import TAG as REPLACES
from sip_bridge.message.sip import REASONS, Address, Response, Uri
from sip_bridge.next_hops import HopTarget, NextHop, leads_to, locate_hops
from sip_bridge.targets import domain_of, read_target

log = logging.getLogger(__name__)

_MAX_REDIRECTS = 5

_SILENT_S = 1.0
"""A target that sends nothing for this long is given up for the next one. Two INVITEs have been sent by then."""

_REFUSED = {403: 403, 404: 404, 422: 404, 429: 480, 503: 503}
"""The SIP status for a peer whose REFER is not followed, by the HTTP status of the refusal. Others are 603."""

_EVENTS: Mapping[str, ProgressEvent] = {"busy": "busy", "no_answer": "noAnswer", "cancelled": "canceled"}
"""Event of a call that was not answered, by the reason. Others are ``failed``."""

_AVOIDED_S = 30.0
"""Time for which a failed target is tried last."""


class Invites:
    """Maps INVITEs to their calls, for as long as answers to the INVITE may come.

    Args:
        expiry_s: 64*T1. For this long after one answer, answers of other forks may come (RFC 3261 section 13.2.2.4).
    """

    def __init__(self, endpoint: Endpoint, expiry_s: float) -> None:
        self._endpoint = endpoint
        self._expiry_s = expiry_s
        self.unanswered: dict[str, OutgoingCall] = {}
        """The calls without a final answer, by Call-ID."""
        self._calls: dict[Key, OutgoingCall] = {}
        self._expiring: dict[Key, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, key: Key, call: OutgoingCall) -> None:
        """Remember a new INVITE."""
        self._calls[key] = call
        self.unanswered[call.call_sid] = call

    def get(self, key: Key | None) -> OutgoingCall | None:
        """Return the call that an answer is for."""
        return self._calls.get(key) if key else None

    def remove(self, key: Key) -> None:
        """Forget a refused INVITE: no more answers come."""
        self._calls.pop(key, None)
        timer = self._expiring.pop(key, None)
        if timer:
            timer.cancel()

    def expire(self, key: Key) -> None:
        """Forget an answered or cancelled INVITE later, since a few more answers may come."""
        self._expiring[key] = asyncio.get_running_loop().call_later(self._expiry_s, self._expired, key)

    def _expired(self, key: Key) -> None:
        self.remove(key)
        self._endpoint.forget(key)  # the endpoint has no timer for a cancelled INVITE that was never answered

    def close(self) -> None:
        """Forget all INVITEs."""
        for key in list(self._calls):
            self.remove(key)


class OutgoingCall(SipCall):
    """An outbound call.

    Args:
        uri: the Request-URI, which is also To.
        from_: our address, for From.
        caller: the caller and the called party, for the session.
        headers: further headers of the INVITE.
        invites: maps INVITEs to their calls.
        on_progress: takes ``ringing`` and ``early_media``, with the status.
    """

    direction = "outbound"
    protocol: InviteClient

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
        caller: SipCaller,
        route: str,
        headers: Sequence[tuple[str, str]],
        invites: Invites,
        on_progress: Callable[[AttemptState, int], None],
    ) -> None:
        super().__init__(host, name, trunk, peer, ports)
        self.caller = caller
        self.route = route
        self._uri = uri
        self.outcome: asyncio.Future[Outcome] = self._loop.create_future()
        self.heard: asyncio.Future[None] = self._loop.create_future()
        """Done when the target has sent anything."""
        self.left: asyncio.Future[None] = self._loop.create_future()
        """Done when the call is over."""
        self.protocol = InviteClient(
            trunk,
            peer,
            host.local,
            ports.port,
            host.config.timeouts,
            uri=uri,
            from_=from_,
            headers=headers,
        )
        self.protocol.transfers.allows = partial(host.may_follow, self)
        self._invites = invites
        self._on_progress = on_progress

    @property
    def call_sid(self) -> str:
        """The call's Call-ID, known even before there is a dialog."""
        return self.protocol.call_id

    @property
    def domain(self) -> str:
        """The domain of numbers that this call is transferred to: the trunk's proxy, else the called party's."""
        return domain_of(Uri.parse(self.trunk.proxies[0]) if self.trunk.proxies else self._uri)

    def start(self) -> None:
        """Send the INVITE."""
        self._tell(self.protocol.start)

    def on_response(self, key: Key | None, response: Response) -> None:
        """Handle a response, and note that the target lives."""
        if not self.heard.done():
            self.heard.set_result(None)
        super().on_response(key, response)

    def _begin(self) -> None:
        answer = self.protocol.answer
        if answer is not None:
            said = custom_headers(answer.headers, self.trunk.headers)
            self.caller = replace(self.caller, parameters={**said, **self.caller.parameters})
        super()._begin()

    def hand_over(self) -> None:
        """End the call without its session. The attempt counts as answered, by the call that replaces this one."""
        if not self.outcome.done():
            self.outcome.set_result(Outcome(200))
        super().hand_over()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Invite(request, peer):
                self._invites.add(self._host.endpoint.request(request, peer), self)
            case Settled(key, more):
                if more:
                    self._invites.expire(key)
                else:
                    self._invites.remove(key)
            case Progress(state, status):
                self._on_progress(state, status)
            case Outcome():
                if not self.outcome.done():
                    self.outcome.set_result(effect)
            case Joined():
                self._invites.unanswered.pop(self.call_sid, None)
                super()._do(effect)
            case Left():
                self._invites.unanswered.pop(self.call_sid, None)
                super()._do(effect)
                if not self.outcome.done():  # an internal error: the attempt must not stay open
                    self.outcome.set_result(Outcome(500, "unavailable"))
                if not self.left.done():
                    self.left.set_result(None)
            case _:
                super()._do(effect)


@dataclass(frozen=True, slots=True)
class Referred:
    """A call that a peer requested by REFER."""

    referral: Referral
    ours: str
    """Our number in the peer's call."""

    def uri(self, dialled: Uri) -> Uri:
        """Return the target with the parameters that it had in Refer-To. Phones find their line by them."""
        return replace(dialled, params={**self.referral.target.params, **dialled.params}) if dialled.host else dialled

    def headers(self, may_set: Callable[[str], bool]) -> list[tuple[str, str]]:
        """Return the headers of the INVITE (RFC 3892, RFC 3891), with those of Refer-To that ``may_set`` allows."""
        referral = self.referral
        replaces = [("Replaces", str(referral.replaces)), ("Require", REPLACES)] if referral.replaces else []
        handed = [
            (name, value)
            for name, value in referral.headers
            if name.lower() == USER_TO_USER.lower() or (may_set(name) and not is_own(name))
        ]
        return [("Referred-By", referral.referred_by), *replaces, *handed]


class Outgoing:
    """Places calls; implements ``gateway.seams.originate.Originator``.

    Args:
        host: the bridge.
        calling: decides which targets may be called.
        new_call_id: makes the session id of a call.
        routes: the names of the routes.
        on_failed: takes the reason of each call that was not answered, for the metric.
        on_cause: takes the cause of each of them that had no session.
        placed: tells the progress of the calls.
    """

    _REMEMBERED = 1000
    """Number of ended attempts that clients can still ask for."""

    def __init__(
        self,
        host: Host,
        calling: CallingPolicy,
        *,
        new_call_id: Callable[[], str],
        routes: Container[str],
        on_failed: Callable[[str], None],
        on_cause: Callable[[EndCause], None],
        placed: FollowPlaced,
    ) -> None:
        self._host = host
        self._calling_policy = calling
        self._new_call_id = new_call_id
        self._routes = routes
        self._on_failed = on_failed
        self._on_cause = on_cause
        self._placed = placed
        self._invites = Invites(host.endpoint, 64 * host.config.timeouts.t1_s)
        self._attempts: OrderedDict[str, Attempt] = OrderedDict()
        self._calling: dict[str, OutgoingCall] = {}
        self._avoided: dict[Peer, float] = {}
        """Targets that failed lately, and the time until which others go before them."""
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks) + len(self._invites)

    async def place(self, order: CallOrder) -> Attempt:
        """Place a call; see ``Originator``."""
        return (await self._begin(order))[0]

    async def _begin(self, order: CallOrder, referred: Referred | None = None) -> tuple[Attempt, asyncio.Task[None]]:
        if order.route not in self._routes:
            raise Rejected(f"no route {order.route[:40]!r}", status=404, code="unknown_route", param="route")
        own_headers = _headers(order)
        domains = self._domains(order)
        domain = _domain(domains)
        now = asyncio.get_running_loop().time()
        allowed = self._calling_policy.place(order, transport="sip", domain=domain, now=now)
        try:
            path = self._path(order, read_target(allowed.target, domain), domains)
            handed = headers_of(order.custom_parameters, path.trunk.headers)
            headers = [*own_headers, *((name, value) for name, value in handed if self._calling_policy.may_set(name))]
            shown = allowed.from_
            if referred is not None:
                path = replace(path, uri=referred.uri(path.uri))
                headers += referred.headers(self._calling_policy.may_set)
                has_account = path.trunk.from_uri or path.trunk.username
                shown = "" if has_account or not is_number(referred.ours) else referred.ours
            from_ = _from(shown, path.trunk, self._host.config.advertised)
            if order.second_leg is not None:
                from_, shown_headers = _shown(order.second_leg, from_)
                headers += shown_headers
            targets = await self._located(path)
            attempt = Attempt(
                call_id=self._new_call_id(), route=order.route, to=number_of(path.uri), from_=number_of(from_.uri)
            )
            call = self._call(attempt, order, path, from_, headers, targets[0])
        except BaseException as error:
            allowed.over()
            if isinstance(error, SipProtocolError):
                raise Rejected(str(error), status=422, code="invalid_body", param="target") from None
            raise
        self._remember(attempt)
        if order.second_leg is None:
            self._placed.add(attempt)
        return attempt, self._own(self._carry(attempt, call, order, path, targets[1:], from_, headers, allowed))

    def _own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def place_for(self, order: CallOrder, tell: Callable[[int, str], None], referred: Referred) -> None:
        """Place a call that a peer requested by REFER. Report 100 and the outcome, as status and phrase, to the
        peer."""
        self._own(self._place_for(order, tell, referred))

    async def _place_for(self, order: CallOrder, tell: Callable[[int, str], None], referred: Referred) -> None:
        tell(100, REASONS[100])
        try:
            attempt, task = await self._begin(order, referred)
        except Rejected as exc:
            self._on_failed(exc.code)
            log.info("REFER not followed", extra={"why": exc.code})
            status = _REFUSED.get(exc.status, 603)
            tell(status, REASONS[status])
            return
        await task
        tell(attempt.status, REASONS.get(attempt.status, attempt.reason))

    def attempt(self, call_id: str) -> Attempt | None:
        """Return an attempt; see ``Originator``."""
        return self._attempts.get(call_id)

    def early(self, dialog: DialogId) -> OutgoingCall | None:
        """Return the call that has this dialog before its answer."""
        call = self._invites.unanswered.get(dialog[0])
        return call if call is not None and call.protocol.is_early(dialog) else None

    def under_way(self) -> list[Attempt]:
        """Return the attempts that are not answered yet; see ``Originator``."""
        return [self._attempts[call_id] for call_id in self._calling if call_id in self._attempts]

    def cancel(self, call_id: str) -> bool:
        """Cancel an attempt; see ``Originator``."""
        call = self._calling.get(call_id)
        if call is not None:
            call.end("hangup_by_api")
        return call is not None

    def on_response(self, key: Key | None, response: Response) -> bool:
        """Handle a response. True: it was for an INVITE of this object."""
        call = self._invites.get(key)
        if call is not None:
            call.on_response(key, response)
        return call is not None

    def on_failed(self, key: Key, reason: Act) -> bool:
        """Handle a failed request. True: it was an INVITE of this object."""
        call = self._invites.get(key)
        if call is not None:
            call.on_failed(key, reason)
        return call is not None

    def drop(self) -> None:
        """Give up every unanswered call."""
        for call in list(self._calling.values()):
            call.end("server is closing")

    async def aclose(self) -> None:
        """Give up every unanswered call, and wait until all are done."""
        self.drop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._invites.close()

    # --- target and trunk ------------------------------------------------------------------------------------------

    @property
    def domain(self) -> str:
        """The host at which numbers are users, for calls that name no trunk. Empty: no trunk has a domain."""
        return _domain(self._domains(CallOrder(target="")))

    def _domains(self, order: CallOrder) -> dict[str, tuple[Uri, ...]]:
        """Return the domains that the call may use, by trunk. Numbers belong to the first one: that of a trunk with a
        proxy, if there is one."""
        trunks, hops = self._host.trunks, self._host.hops
        if not order.trunk:
            found = {name: domains for name in trunks if (domains := hops.domains(name))}
            return dict(sorted(found.items(), key=lambda each: not trunks[each[0]].proxies))
        if order.trunk not in trunks:
            raise Rejected(f"no trunk {order.trunk[:40]!r}", status=404, code="unknown_trunk", param="trunk")
        domains = hops.domains(order.trunk)
        if not domains:
            raise Rejected(f"trunk {order.trunk} has no proxy", status=422, code="invalid_body", param="trunk")
        return {order.trunk: domains}

    def _path(self, order: CallOrder, uri: Uri, domains: Mapping[str, tuple[Uri, ...]]) -> _Path:
        name = order.trunk or next(
            (name for name, served in domains.items() if any(leads_to(domain, uri) for domain in served)), ""
        )
        if name:
            return _Path(name, self._host.trunks[name], uri, domains[name][0])
        return _Path("", TrunkConfig.model_construct(), uri, uri, (NextHop(uri),))

    async def _located(self, path: _Path) -> list[HopTarget]:
        """Return the addresses of a path's next hop, those that failed lately last.

        Raises:
            Rejected: the next hop cannot be reached.
        """
        if path.name and not self._host.hops.reachable(path.name):
            raise Rejected(f"trunk {path.name} does not answer", status=503, code="unreachable", param="trunk")
        try:
            targets = await locate_hops(path.hops or self._host.hops.hops(path.name), ours=self._host.local.host)
        except Unreachable as error:
            raise Rejected(str(error), status=503, code="unreachable", param="target") from None
        now = asyncio.get_running_loop().time()
        return sorted(targets, key=lambda target: self._avoided.get(target.peer, 0.0) > now)

    def _avoid(self, peer: Peer, seconds: float) -> None:
        self._avoided.pop(peer, None)
        self._avoided[peer] = asyncio.get_running_loop().time() + seconds
        while len(self._avoided) > self._REMEMBERED:
            self._avoided.pop(next(iter(self._avoided)))

    # --- the attempt -----------------------------------------------------------------------------------------------

    def _call(
        self,
        attempt: Attempt,
        order: CallOrder,
        path: _Path,
        from_: Address,
        headers: Sequence[tuple[str, str]],
        target: HopTarget,
    ) -> OutgoingCall:
        second, trunk = order.second_leg, path.trunk

        def progress(state: AttemptState, status: int) -> None:
            attempt.state, attempt.status = state, status
            if second is not None:
                second.on_progress(attempt)
            else:
                event: ProgressEvent = "early" if state == "early_media" else "ringing"
                self._placed.tell(attempt, event, sip_status=status)

        if second is not None:
            trunk = trunk.model_copy(update={"early_media": True})  # the caller hears how the person's phone rings

        call = OutgoingCall(
            self._host,
            path.name,
            trunk,
            target.peer,
            self._host.reserve(path.name, path.trunk),
            uri=path.uri,
            from_=from_,
            caller=SipCaller(number_of(from_.uri), number_of(path.uri), parameters=dict(order.custom_parameters)),
            route=order.route,
            headers=[*(("Route", route) for route in target.routes), *headers],
            invites=self._invites,
            on_progress=progress,
        )
        call.session_id, call.parent_call_sid = attempt.call_id, order.parent_call_sid
        if second is not None:
            call.joined_to = second.joined_to
        self._calling[attempt.call_id] = call
        call.start()
        return call

    async def _carry(
        self,
        attempt: Attempt,
        call: OutgoingCall,
        order: CallOrder,
        path: _Path,
        others: list[HopTarget],
        from_: Address,
        headers: Sequence[tuple[str, str]],
        allowed: Allowed,
    ) -> None:
        """Follow an attempt to its end, through redirections."""
        tried = {str(path.uri)}
        ahead: list[Uri] = []
        answered = False
        try:
            again = partial(self._call, attempt, order, path, from_, headers)
            call, outcome = await self._first_that_answers(call, others, again)
            while 300 <= outcome.status < 400 and len(tried) <= _MAX_REDIRECTS:
                ahead = [uri for uri in (*outcome.elsewhere, *ahead) if str(uri) not in tried]
                if not ahead:
                    break
                uri = ahead.pop(0)
                tried.add(str(uri))
                try:
                    bare = str(replace(uri, params={}, headers=""))
                    self._calling_policy.target(bare, route=order.route, transport="sip", domain=domain_of(path.domain))
                    elsewhere = replace(path, uri=uri, domain=uri, hops=(NextHop(uri),))
                    target, *others = await self._located(elsewhere)
                    again = partial(self._call, attempt, order, elsewhere, from_, headers)
                    call, outcome = await self._first_that_answers(again(target), others, again)
                except Rejected as exc:
                    self._on_failed(exc.code)
                    log.info("SIP redirection not followed", extra={"why": exc.code})
            answered = outcome.status == 200
        finally:
            self._calling.pop(attempt.call_id, None)
            if answered:
                call.left.add_done_callback(lambda _: allowed.over())
            else:
                allowed.over()
        attempt.status = outcome.status
        if outcome.status == 200:
            attempt.state = "answered"
            if order.second_leg is None:
                self._placed.tell(attempt, "answered", sip_status=200)
            self._attempts.pop(attempt.call_id, None)  # from now on, clients ask for the session instead
        else:
            attempt.state, attempt.reason = "failed", outcome.reason
            cause = outcome.cause
            attempt.cause = replace(cause, by=cause.by or "gateway", sip_status=cause.sip_status or outcome.status)
            self._on_failed(outcome.reason)
            if not call.begun:
                self._on_cause(attempt.cause)
            if order.second_leg is None:
                self._placed.tell(attempt, _EVENTS.get(outcome.reason, "failed"), sip_status=outcome.status)
            log.info(
                "call not answered", extra={"call": attempt.call_id, "route": attempt.route, "status": outcome.status}
            )
        if order.second_leg is not None:
            order.second_leg.on_progress(attempt)

    async def _first_that_answers(
        self, call: OutgoingCall, others: list[HopTarget], again: Callable[[HopTarget], OutgoingCall]
    ) -> tuple[OutgoingCall, Outcome]:
        """Return the first call that does not fail for its target alone, and its outcome (RFC 3263 section 4.3).

        A target fails if the connection fails, if it answers 503, or if it sends nothing for ``_SILENT_S``. The last
        target has all the time of its transaction.
        """
        while others:
            news: list[asyncio.Future[Any]] = [call.outcome, call.heard]
            await asyncio.wait(news, timeout=_SILENT_S, return_when=asyncio.FIRST_COMPLETED)
            if call.heard.done() or call.outcome.done():
                outcome = await call.outcome
                if outcome.status != 503 and outcome.reason != "unreachable":
                    return call, outcome
                self._avoid(call.peer, max(_AVOIDED_S, outcome.retry_after_s))
            else:
                call.end("target does not answer")
                self._avoid(call.peer, _AVOIDED_S)
            log.info("next SIP target", extra={"call": call.session_id, "route": call.route, "failed": call.peer.host})
            call = again(others.pop(0))
        return call, await call.outcome

    def _remember(self, attempt: Attempt) -> None:
        self._attempts[attempt.call_id] = attempt
        while len(self._attempts) > self._REMEMBERED + len(self._calling):
            self._attempts.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _Path:
    """The trunk and next hops by which a target is called."""

    name: str
    """The trunk's name. Empty: the target is called directly, without a trunk."""
    trunk: TrunkConfig
    uri: Uri
    domain: Uri
    """The URI whose host numbers belong to."""
    hops: tuple[NextHop, ...] = ()
    """The next hops of the call. Empty: those of the trunk."""


def _domain(domains: Mapping[str, tuple[Uri, ...]]) -> str:
    return domain_of(next(iter(domains.values()))[0]) if domains else ""


def _headers(order: CallOrder) -> list[tuple[str, str]]:
    for name, value in order.headers.items():
        if is_own(name) or not re.fullmatch(r"[A-Za-z0-9.!%*_+`'~-]{1,100}", name) or re.search(r"[\r\n\0]", value):
            raise Rejected(
                f"header {name[:40]!r} cannot be set: expected a name that SIP does not use, and a one-line value",
                status=422,
                code="invalid_body",
                param="headers",
            )
    return list(order.headers.items())


def _shown(second: SecondLeg, from_: Address) -> tuple[Address, list[tuple[str, str]]]:
    """Return From of a second leg and the headers that show its caller: P-Asserted-Identity (RFC 3325 section 9.1) and
    Diversion (RFC 5806). A number or name that cannot stand in a SIP address is left out."""
    domain = domain_of(from_.uri)

    def address(number: str, name: str = "") -> Address | None:
        try:
            return Address(read_target(number, domain), display_name=name) if number else None
        except SipProtocolError:
            return None

    caller, called = address(second.shown_number, second.shown_name), address(second.diverted_from)
    headers = [("P-Asserted-Identity", str(caller))] if caller is not None else []
    if called is not None:
        headers.append(("Diversion", f"{called};reason=unknown"))
    return caller or from_, headers


def _from(caller_id: str, trunk: TrunkConfig, host: str) -> Address:
    literal = f"[{host}]" if ":" in host else host
    own = Uri.parse(trunk.from_uri or f"sip:{trunk.username or 'talkspurt'}@{literal}")
    if not caller_id:
        return Address(own)
    try:
        return Address(read_target(caller_id, domain_of(own)))
    except SipProtocolError:
        error = "from is a name, expected a SIP URI or a number"
        raise Rejected(error, status=422, code="invalid_body", param="from") from None
