"""Call-control webhooks: the answer that starts a media stream, what follows the stream, status callbacks.

What each carrier says and wants to hear stands in ``call_control``. Whoever asks proves to be the carrier; only on this
machine, where no secret is configured, nobody has to.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from urllib.parse import quote, urlencode

import orjson
from aiohttp import web

from gateway.call.handoff import Handoffs
from gateway.carriers.call_control import CALL_CONTROL, CALLER_FIELDS, Answer, Hook, Next, Stream
from gateway.carriers.signatures import SIGNS_ADDRESS
from gateway.carriers.tokens import StreamTokens
from gateway.config import CarriersConfig, RouteConfig
from gateway.errors import Rejected
from gateway.listener.forwarded import PublicUrl
from gateway.seams.media_messages import PARAMETER_PREFIX

log = logging.getLogger(__name__)

_UNREPEATED = tuple(name for name in CALLER_FIELDS if name != "CallSid")


class Webhooks:
    """``/webhooks/{dialect}[/{route}]``, ``…/after`` and ``…/status``."""

    def __init__(
        self,
        public_url: PublicUrl,
        carriers: CarriersConfig,
        routes: Mapping[str, RouteConfig],
        tokens: StreamTokens,
        handoffs: Handoffs,
    ) -> None:
        self._public_url = public_url
        self._carriers = carriers
        self._routes = routes
        self._tokens = tokens
        self._handoffs = handoffs

    def public_url(self, request: web.Request) -> str:
        """Scheme and authority under which the outside knows us, without a trailing slash."""
        return self._public_url.of(request.remote or "", request.headers)

    async def start(self, request: web.Request) -> web.Response:
        """The answer to an incoming call."""
        dialect, route, form, proven = await self._checked(request)
        public = self.public_url(request)
        caller = {ours: form[theirs] for ours, names in CALLER_FIELDS.items() for theirs in names if form.get(theirs)}
        after = f"{public}/webhooks/{dialect}/{route}/after"
        names = _UNREPEATED
        if dialect != "twilio":
            # Whether these carriers name the call alike in webhooks and on the stream is not certain: say it ourselves.
            names = tuple(CALLER_FIELDS)
            if caller.get("CallSid"):
                after += "?" + urlencode({"call": caller["CallSid"]})
        own = {name: value for name, value in request.query.items() if name != "bodySHA256"}
        if request.method == "GET":
            own = {
                name: value for name, value in own.items() if not any(name in known for known in CALLER_FIELDS.values())
            }
        call = caller.get("CallSid", "") if CALL_CONTROL[dialect].names_call else ""
        token = self._tokens.make(dialect, route, now=time.time(), call=call)
        stream = Stream(
            url=f"{public}/media/{dialect}/{route}/{token}".replace("http", "ws", 1),
            after_url=after,
            caller=caller,
            parameters={PARAMETER_PREFIX + name: caller[name] for name in names if name in caller} | own,
            proven=proven,
        )
        return _response(CALL_CONTROL[dialect].start(self._carriers, stream))

    async def after(self, request: web.Request) -> web.Response:
        """What the carrier does when our stream has ended: transfer, hand off, or hang up."""
        dialect, _, form, _ = await self._checked(request)
        control = CALL_CONTROL[dialect]
        if not control.asks(form):
            return web.Response(status=204)
        call_sid = request.query.get("call") or next(
            (form[name] for name in CALLER_FIELDS["CallSid"] if form.get(name)), ""
        )
        handoff = self._handoffs.take(dialect, call_sid)
        following = Next()
        after_url = control.after_address(self._carriers)
        if handoff is not None and handoff.transfer_target:
            following = Next(dial=handoff.transfer_target)
        elif handoff is not None and after_url:
            # Twilio's own ConversationRelay posts these fields; a Redirect carries them in the query.
            separator = "&" if "?" in after_url else "?"
            query = f"SessionId={handoff.session_id}&SessionStatus={handoff.reason}"
            if handoff.handoff_data is not None:
                query += f"&HandoffData={quote(handoff.handoff_data, safe='')}"
            following = Next(redirect=after_url + separator + query)
        return _response(control.after(following))

    async def status(self, request: web.Request) -> web.Response:
        """A status callback; logged, never needed."""
        dialect, route, form, _ = await self._checked(request)
        event = next((form[name] for name in _EVENT_FIELDS if form.get(name)), "")
        log.info("carrier status", extra={"route": route, "event": event[:40], "dialect": dialect})
        return web.Response(status=204)

    async def _checked(self, request: web.Request) -> tuple[str, str, Mapping[str, str], bool]:
        """Dialect, route, the first value of each field, and whether the carrier has proven that it asks."""
        dialect, route = request.match_info["dialect"], request.match_info.get("route", "default")
        if dialect not in CALL_CONTROL or not self._carriers.has(dialect):
            raise Rejected(f"no carrier {dialect[:40]!r} with webhooks is configured", status=404, code="not_found")
        if route not in self._routes:
            raise Rejected(f"no route {route[:40]!r}", status=404, code="unknown_route", param="route")
        body = await request.read()
        fields: dict[str, list[str]] | None = None
        if request.method == "POST":
            fields = {}
            if request.content_type == "application/x-www-form-urlencoded":
                for name, value in (await request.post()).items():
                    fields.setdefault(name, []).append(str(value))
        proven = False
        if self._carriers.of(dialect).verify:
            hook = Hook(
                url=self.public_url(request) + request.raw_path,
                headers={name.lower(): value for name, value in request.headers.items()},
                body=body,
                form=fields,
                now=time.time(),
            )
            signed = CALL_CONTROL[dialect].signed(self._carriers, hook)
            if signed is False:
                if dialect in SIGNS_ADDRESS:
                    self._public_url.tell_of_mismatch(dialect, request.remote or "", request.headers)
                raise Rejected(
                    f"{dialect}: the signature or credentials do not match", status=403, code="bad_signature"
                )
            proven = bool(signed)
        if not proven and not self._public_url.is_local(request.remote or "", request.headers):
            raise Rejected(
                f"{dialect}: nothing is configured that proves who asks (carriers.{dialect.replace('-', '_')})",
                status=403, code="unproven",
            )  # fmt: skip
        if fields is None:
            return dialect, route, dict(request.query), proven
        if request.content_type == "application/json":
            return dialect, route, _scalars(body), proven
        return dialect, route, {name: values[0] for name, values in fields.items()}, proven


_EVENT_FIELDS = ("StreamEvent", "Event", "CallStatus", "call_status", "status", "event")


def _scalars(body: bytes) -> dict[str, str]:
    """Text and numbers of a JSON object."""
    try:
        value = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError as exc:
        raise Rejected(f"body of {len(body)} bytes is not JSON", status=400, code="invalid_json") from exc
    if not isinstance(value, dict):
        raise Rejected(f"body is a JSON {type(value).__name__}, expected an object", status=400, code="invalid_json")
    return {name: str(entry) for name, entry in value.items() if isinstance(entry, str | int | float)}


def _response(answer: Answer) -> web.Response:
    return web.Response(body=answer.body, content_type=answer.content_type)
