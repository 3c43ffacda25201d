"""Call-control webhooks: the answer that starts a media stream, what follows the stream, status callbacks.

One handler per dialect family; the signature is checked where the carrier signs and a secret is configured.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Mapping, Sequence
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from aiohttp import web

from gateway.config import CarriersConfig, RouteConfig, ServerConfig
from gateway.errors import Rejected
from gateway.handoff import Handoffs
from gateway.signatures import twilio_signed
from gateway.tokens import StreamTokens

log = logging.getLogger(__name__)

CALLER_FIELDS = ("From", "To", "ForwardedFrom", "CallerName", "Direction", "CallStatus", "ParentCallSid")
"""Webhook fields that a media stream's start does not repeat; they travel as stream parameters of this prefix."""
PARAMETER_PREFIX = "talkspurt."


class Webhooks:
    """``/webhooks/{dialect}[/{route}]``, ``…/after`` and ``…/status``."""

    def __init__(
        self,
        server: ServerConfig,
        carriers: CarriersConfig,
        routes: Mapping[str, RouteConfig],
        tokens: StreamTokens,
        handoffs: Handoffs,
    ) -> None:
        self._server = server
        self._carriers = carriers
        self._routes = routes
        self._tokens = tokens
        self._handoffs = handoffs

    def public_url(self, request: web.Request) -> str:
        """Scheme and authority under which the outside knows us, without a trailing slash."""
        if self._server.public_url:
            return self._server.public_url.rstrip("/")
        scheme, host = request.scheme, request.host
        if request.remote and trusted(request.remote, self._server.trusted_proxies):
            scheme = request.headers.get("X-Forwarded-Proto", scheme).partition(",")[0].strip()
            host = request.headers.get("X-Forwarded-Host", host).partition(",")[0].strip()
        return f"{scheme}://{host}"

    async def start(self, request: web.Request) -> web.Response:
        """The answer to an incoming call."""
        route, form = await self._checked(request)
        public = self.public_url(request)
        token = self._tokens.make("twilio", route, now=time.time())
        stream = f"{public}/media/twilio/{route}/{token}".replace("http", "ws", 1)
        parameters = "".join(
            f"<Parameter name={quoteattr(PARAMETER_PREFIX + name)} value={quoteattr(form[name])}/>"
            for name in CALLER_FIELDS
            if form.get(name)
        )
        parameters += "".join(
            f"<Parameter name={quoteattr(name)} value={quoteattr(value)}/>"
            for name, value in request.query.items()
            if name != "bodySHA256"
        )
        return _xml(
            f"<Connect><Stream url={quoteattr(stream)}>{parameters}</Stream></Connect>"
            f'<Redirect method="POST">{escape(f"{public}/webhooks/twilio/{route}/after")}</Redirect>'
        )

    async def after(self, request: web.Request) -> web.Response:
        """What the carrier does when our stream has ended: transfer, hand off, or hang up."""
        route, form = await self._checked(request)
        handoff = self._handoffs.take(form.get("CallSid", ""))
        if handoff is not None and handoff.transfer_target:
            target = handoff.transfer_target
            noun = "Sip" if target.startswith(("sip:", "sips:")) else "Number"
            return _xml(f"<Dial><{noun}>{escape(target)}</{noun}></Dial>")
        after_url = self._carriers.twilio.after_url
        if handoff is not None and after_url:
            # Twilio's own ConversationRelay posts these fields; a Redirect carries them in the query.
            separator = "&" if "?" in after_url else "?"
            query = f"SessionId={handoff.session_id}&SessionStatus={handoff.reason}"
            if handoff.handoff_data is not None:
                query += f"&HandoffData={quote(handoff.handoff_data, safe='')}"
            return _xml(f'<Redirect method="POST">{escape(after_url + separator + query)}</Redirect>')
        return _xml("<Hangup/>")

    async def status(self, request: web.Request) -> web.Response:
        """A status callback; logged, never needed."""
        route, form = await self._checked(request)
        log.info(
            "carrier status",
            extra={
                "route": route,
                "event": form.get("StreamEvent") or form.get("CallStatus") or "",
                "dialect": "twilio",
            },
        )
        return web.Response(status=204)

    async def _checked(self, request: web.Request) -> tuple[str, Mapping[str, str]]:
        dialect, route = request.match_info["dialect"], request.match_info.get("route", "default")
        if dialect != "twilio":
            raise Rejected(f"no webhooks for dialect {dialect[:40]!r}", status=404, code="not_found")
        if route not in self._routes:
            raise Rejected(f"no route {route[:40]!r}", status=404, code="unknown_route", param="route")
        body = await request.read()
        form = dict(request.query) if request.method == "GET" else {}
        fields: dict[str, list[str]] = {}
        if request.method == "POST" and request.content_type == "application/x-www-form-urlencoded":
            for name, value in (await request.post()).items():
                fields.setdefault(name, []).append(str(value))
            form = {name: values[0] for name, values in fields.items()}
        twilio = self._carriers.twilio
        if twilio.verify and twilio.auth_token is not None:
            url = self.public_url(request) + request.raw_path
            given = request.headers.get("X-Twilio-Signature", "")
            if not twilio_signed(twilio.auth_token.get_secret_value(), url, given, fields, body):
                raise Rejected("X-Twilio-Signature does not match", status=403, code="bad_signature")
        return route, form


def trusted(remote: str, proxies: Sequence[str]) -> bool:
    """Whether a peer's ``X-Forwarded-*`` headers are believed."""
    try:
        address = ipaddress.ip_address(remote)
    except ValueError:
        return False
    return any(address in ipaddress.ip_network(proxy, strict=False) for proxy in proxies)


def _xml(verbs: str) -> web.Response:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Response>{verbs}</Response>'
    return web.Response(text=text, content_type="text/xml")
