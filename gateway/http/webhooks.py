"""Call-control webhooks: the answer that starts a media stream, the answer after a stream, and status callbacks.

Each carrier's ``call_control`` module defines its requests and answers. A request must prove that it comes from the
carrier, except from this machine if no secret is configured.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from gateway.call.handoff import Handoffs
from gateway.carriers.call_control import Answer, CallControl, NextAction, StreamOrder
from gateway.carriers.call_status import read_status
from gateway.carriers.caller import as_parameters
from gateway.carriers.carrier import ConfiguredCarrier
from gateway.carriers.proof import Hook, Upgrade
from gateway.config import RouteConfig
from gateway.errors import Rejected, did_you_mean
from gateway.http.after import AfterUrl, GivenAnswers
from gateway.http.request import request_id
from gateway.http.request.forms import read_form
from gateway.http.used_proofs import UsedProofs
from gateway.listener.forwarded import PublicUrl
from gateway.listener.sites import Sites
from gateway.listener.stream_claims import StreamClaims
from gateway.placing.carrier_calls import PLACED, CarrierCalls
from gateway.seams.originate import Attempt
from gateway.seams.plain_text import plain_fields, read_json
from gateway.seams.shared_state import Values
from gateway.tokens import Tokens

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Request:
    """A webhook request that was checked."""

    carrier: ConfiguredCarrier
    control: CallControl[Any]
    route: str
    form: Mapping[str, str]
    """One value of each form field."""
    proven: bool
    """True if the request has proven that it comes from the carrier."""
    proof_id: bytes
    """Id of what the proof covers. Empty: there is no proof of this request alone."""
    repeated: Answer | None = None
    """The answer that this request got before. None: it has none to get again."""

    @property
    def dialect(self) -> str:
        return self.carrier.vendor.name

    @property
    def call_sid(self) -> str:
        """The carrier's call id in the form; empty if there is none."""
        return next((self.form[name] for name in self.control.caller_fields["CallSid"] if self.form.get(name)), "")


class Webhooks:
    """``/webhooks/{dialect}[/{route}]``, ``…/after`` and ``…/status``.

    Args:
        sites: refuses pages of other sites, where no proof is asked for.
        claims: the stream tokens and signatures that calls began with.
        values: used proofs and given answers, known to all processes that serve the same callers.
        placed: the calls that were placed at carriers. None: none can be placed.
    """

    def __init__(
        self,
        public_url: PublicUrl,
        sites: Sites,
        carriers: Mapping[str, ConfiguredCarrier],
        routes: Mapping[str, RouteConfig],
        tokens: Tokens,
        handoffs: Handoffs,
        claims: StreamClaims,
        values: Values,
        placed: CarrierCalls | None = None,
    ) -> None:
        self._public_url = public_url
        self._sites = sites
        self._carriers = carriers
        self._routes = routes
        self._tokens = tokens
        self._handoffs = handoffs
        self._claims = claims
        self._placed = placed
        self._after_url = AfterUrl()
        self._given = GivenAnswers(values)
        self._used = UsedProofs(values)

    def public_url(self, request: web.Request) -> str:
        """Return our public scheme and authority, without a trailing slash."""
        return self._public_url.of(request.remote or "", request.headers)

    async def start(self, request: web.Request) -> web.Response:
        """Answer the webhook of an incoming call."""
        asked = await self._checked(request, "start")
        if asked.repeated is not None:
            return _response(asked.repeated)
        dialect, route, control, form = asked.dialect, asked.route, asked.control, asked.form
        public = self.public_url(request)
        fields = control.caller_fields
        caller = {ours: form[theirs] for ours, names in fields.items() for theirs in names if form.get(theirs)}
        after = f"{public}/webhooks/{dialect}/{route}/after"
        await self._given.forget((dialect, route, caller.get("CallSid", "")))
        told = dict(caller)
        if control.names_call == "itself":
            told.pop("CallSid", None)
        elif caller.get("CallSid"):
            # The carrier's call id may differ between webhooks and the stream, so we pass it on ourselves.
            after += "?" + urlencode({"call": caller["CallSid"]})
        own = {name: value for name, value in plain_fields(request.query).items() if name not in _NOT_PARAMETERS}
        if request.method == "GET":
            own = _without_carrier_fields(own, control)
        call = caller.get("CallSid", "") if control.names_call != "unsure" else ""
        token_id = self._tokens.fresh_id()
        placed = self._answered(request, asked)
        under = "" if placed is None else f"/{placed.call_id}"
        if placed is not None:
            told = {**told, "Direction": "outbound", "From": placed.from_, "To": placed.to}
            own |= placed.custom_parameters
            token_id = placed.token_id
        if asked.proof_id:
            # Several carriers sign no time, so a captured request stays valid. A repetition after its call has begun
            # gets no second stream.
            token_id = asked.proof_id if placed is None else placed.token_id
            if await self._claims.is_spent(token_id):
                raise Rejected(
                    "this request has already begun its call; a call that returns needs another address, "
                    "for example with ?again=1",
                    status=409, code="replayed",
                )  # fmt: skip
        token = self._tokens.make(dialect, route, now=time.time(), call=call, token_id=token_id)
        # The id of the resulting call ends with these digits.
        log.info(
            "stream requested",
            extra={
                "stream": token_id.hex(),
                "call_sid": _loggable(caller.get("CallSid", "")),
                "route": route,
                "dialect": dialect,
                "request": request_id.of(request),
            },
        )
        stream = StreamOrder(
            # The stream may reach another worker than the one that has placed the call.
            url=f"{public}/media/{dialect}/{route}/{token}{under}".replace("http", "ws", 1),
            after_url=after,
            caller=caller,
            parameters=as_parameters(told) | own,
            proven=asked.proven,
        )
        answer = control.start(asked.carrier.settings, stream)
        if asked.proof_id:
            await self._used.store(asked.proof_id, answer)
        return _response(answer)

    async def after(self, request: web.Request) -> web.Response:
        """Tell the carrier what to do after our stream: transfer, hand off, or hang up."""
        asked = await self._checked(request, "after")
        if not asked.control.asks(asked.form):
            return web.Response(status=204)
        call_sid = request.query.get("call") or asked.call_sid
        call = (asked.dialect, asked.route, call_sid)
        return _response(await self._given.answer(call, lambda previous: self._following(asked, call_sid, previous)))

    async def _following(self, asked: _Request, call_sid: str, previous: Answer | None) -> Answer:
        """Return what follows a stream. A repeated webhook finds no handoff and gets the previous answer."""
        control = asked.control
        handoff = await self._handoffs.take(asked.dialect, call_sid)
        if handoff is not None:
            log.info("stream ended", extra={"call": handoff.session_id, "route": asked.route, "dialect": asked.dialect})
        if handoff is None:
            return previous or control.after(NextAction())
        if handoff.transfer_target or handoff.conference:
            return control.after(NextAction(dial=handoff.transfer_target, conference=handoff.conference))
        after_url = control.after_address(asked.carrier.settings)
        if not after_url:
            return control.after(NextAction())
        form = {**asked.form, "SessionId": handoff.session_id, "SessionStatus": handoff.reason}
        if handoff.handoff_data is not None:
            form["HandoffData"] = handoff.handoff_data
        secret = control.secret(asked.carrier.settings)
        answer = await self._after_url.ask(after_url, form, "" if secret is None else secret.get_secret_value())
        return answer or control.after(NextAction(dial=self._routes[asked.route].fallback.transfer))

    async def aclose(self) -> None:
        """End the requests to applications."""
        await self._given.aclose()
        await self._after_url.aclose()

    def _answered(self, request: web.Request, asked: _Request) -> Attempt | None:
        """Return the placed call that a webhook is about. None: it is an incoming call."""
        if self._placed is None or PLACED not in request.query:
            return None
        return self._placed.answered(
            request.query[PLACED], transport=asked.dialect, route=asked.route, call_sid=_loggable(asked.call_sid)
        )

    async def status(self, request: web.Request) -> web.Response:
        """Log a status callback, and report the progress of a placed call."""
        asked = await self._checked(request, "status")
        event = next((asked.form[name] for name in _EVENT_FIELDS if asked.form.get(name)), "")
        call_sid = _loggable(asked.call_sid)
        log.info(
            "carrier status",
            extra={"call_sid": call_sid, "route": asked.route, "event": event[:40], "dialect": asked.dialect},
        )
        status = read_status(asked.form)
        if self._placed is not None and status is not None:
            self._placed.reported(request.query.get(PLACED, ""), asked.dialect, call_sid, status)
        return web.Response(status=204)

    async def _checked(self, request: web.Request, kind: str) -> _Request:
        """Check that a webhook comes from its carrier, and bind its proof to this kind of webhook, route and call.

        Raises:
            Rejected: there is no such carrier or route, or a required proof is missing or came for something else.
        """
        dialect, route = request.match_info["dialect"], request.match_info.get("route", "default")
        configured = self._carriers.get(dialect)
        control = None if configured is None else configured.vendor.call_control
        if configured is None or control is None:
            able = [name for name, each in self._carriers.items() if each.vendor.call_control is not None]
            hint = did_you_mean(dialect, able)
            raise Rejected(
                f"no carrier {dialect[:40]!r} with webhooks is configured{hint}", status=404, code="not_found"
            )
        if route not in self._routes:
            raise Rejected(f"no route {route[:40]!r}", status=404, code="unknown_route", param="route")
        body = await request.read()
        fields: dict[str, list[str]] | None = None
        if request.method == "POST":
            is_form = request.content_type == "application/x-www-form-urlencoded"
            fields = await read_form(request) if is_form else {}
        proven, covered, as_upgrade = False, b"", b""
        if configured.settings.verify:
            hook = Hook(
                url=self.public_url(request) + request.raw_path,
                headers={name.lower(): value for name, value in request.headers.items()},
                body=body,
                form=fields,
                now=time.time(),
            )
            proof = configured.vendor.proof
            signed = proof.webhook(configured.settings, hook)
            if signed is False:
                if proof.address_header:
                    self._public_url.tell_of_mismatch(dialect, request.remote or "", request.headers)
                raise configured.mismatch(hook.url, hook.headers)
            proven = bool(signed)
            if proven:
                covered = proof.covered(hook)
                as_upgrade = proof.upgrade_covered(Upgrade(hook.url, "", hook.headers, hook.now))
        if not proven:
            if not self._public_url.is_local(request.remote or "", request.headers):
                raise Rejected(
                    f"{dialect}: no secret is configured to check requests with (carriers.{configured.vendor.key})",
                    status=403, code="unproven",
                )  # fmt: skip
            # A page of another site may make a browser on this machine ask.
            self._sites.check(request.remote or "", request.headers, changes=True)
        form: Mapping[str, str]
        if fields is None:
            form = request.query
        elif request.content_type == "application/json":
            value = _object(body)
            if mistaken := control.mistaken(value):
                log.warning("webhook of another product", extra={"dialect": dialect, "why": mistaken})
                raise Rejected(f"{dialect}: {mistaken}", status=422, code="wrong_product")
            form = {name: str(entry) for name, entry in value.items() if isinstance(entry, str | int | float)}
        else:
            # Signatures cover the values in any order, so the order must not choose one.
            form = {name: min(values) for name, values in fields.items()}
        proof_id = self._tokens.id_of(dialect.encode() + b"\0" + covered) if covered else b""
        asked = _Request(configured, control, route, plain_fields(form), proven, proof_id)
        if not proof_id:
            return asked
        call_sid = request.query.get("call") or asked.call_sid

        async def begin() -> None:
            if as_upgrade:  # a proof that would open a stream, too
                now = time.time()
                await self._claims.withdraw(self._tokens.of_signature(dialect, as_upgrade, now=now), now=now)

        return replace(asked, repeated=await self._used.bind(proof_id, (kind, request.method, route, call_sid), begin))


def _without_carrier_fields(query: Mapping[str, str], control: CallControl[Any]) -> dict[str, str]:
    """Return the parameters of a GET that the configured address has, without the fields that the carrier adds."""
    known = {name for names in control.caller_fields.values() for name in names}
    return {
        name: value for name, value in query.items() if name not in known and not control.own_fields.fullmatch(name)
    }


_NOT_PARAMETERS = frozenset({"bodySHA256", PLACED})
"""Parameters of a webhook's address that are not the application's."""

_CALL_SID = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9._:-]{1,128}", re.ASCII)

_EVENT_FIELDS = ("StreamEvent", "Event", "CallStatus", "call_status", "status", "event")


def _loggable(call_sid: str) -> str:
    """Return a carrier's call id, or nothing if it may be a telephone number or other personal data."""
    return call_sid if _CALL_SID.fullmatch(call_sid) else ""


def _object(body: bytes) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = read_json(body or b"{}")
    except ValueError as exc:
        raise Rejected(f"body of {len(body)} bytes is not JSON", status=400, code="invalid_json") from exc
    if not isinstance(value, dict):
        raise Rejected(f"body is a JSON {type(value).__name__}, expected an object", status=400, code="invalid_json")
    return value


def _response(answer: Answer) -> web.Response:
    return web.Response(body=answer.body, headers={"Content-Type": answer.content_type})
