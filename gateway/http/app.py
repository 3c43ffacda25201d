"""The HTTP application: everything on the port except ``/media/*``. This module declares its routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from gateway.config import LimitsConfig
from gateway.dialogue.audio_socket import AudioSockets
from gateway.dialogue.hub import DialogueHub
from gateway.errors import ProtocolError, Rejected
from gateway.http.call_api.calls import (
    AttemptView,
    CallList,
    Calls,
    CallView,
    MessageBody,
    PlaceCallBody,
    WordsBody,
)
from gateway.http.call_api.ended_calls import EndedCallList, EndedCalls, EndedCallView
from gateway.http.health import Health, HealthView
from gateway.http.request import errors, request_id
from gateway.http.request.auth import IS_GOOD, WHO, Authenticator
from gateway.http.request.openapi import openapi
from gateway.http.request.routes import JSON, Handler, Route
from gateway.http.webhooks import Webhooks
from gateway.listener.sites import Sites, check_one_host
from gateway.seams.plain_text import is_plain

ROUTES: web.AppKey[list[Route]] = web.AppKey("routes", list)
"""All routes of the application."""

DESCRIPTION: web.AppKey[dict[str, Any]] = web.AppKey("description", dict)
"""The OpenAPI description of the routes."""

_UNDER_ANY_HOST = ("/healthz", "/readyz", "/webhooks/")
"""Paths that are served under any host name. Probes use any address of the process, and carriers sign their
requests."""
_BROWSER_CALL_PATHS = ("/v1/webrtc/", "/whip/")
"""Paths that pages of ``webrtc.allowed_origins`` may also use."""


@web.middleware
async def _plain_bodies_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse compressed bodies (RFC 9110 section 15.5.16), since the listener does not decompress them."""
    packed = request.headers.get("Content-Encoding", "identity")
    if packed.lower() != "identity":
        raise Rejected(
            f"Content-Encoding is {packed[:40]!r}, expected an uncompressed body",
            status=415, code="packed_body",
        )  # fmt: skip
    return await handler(request)


@web.middleware
async def _plain_addresses_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse control characters in a path or query. Carriers' webhooks quote what callers sent, and read it plain."""
    parts = (request.path, *request.query.keys(), *request.query.values())
    if not request.path.startswith("/webhooks/") and not all(map(is_plain, parts)):
        raise Rejected("the address has a control character", status=400, code="invalid_address")
    return await handler(request)


def _guarded_by(sites: Sites, call_origins: Sequence[str], on_rejected: Callable[[str], None]) -> Any:
    """Make a middleware that refuses requests from pages of other sites, and passes the code to ``on_rejected``."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith(_UNDER_ANY_HOST):
            changes = request.method not in ("GET", "HEAD", "OPTIONS") or "Upgrade" in request.headers
            also = call_origins if request.path.startswith(_BROWSER_CALL_PATHS) else ()
            try:
                check_one_host(request.headers.getall("Host", ()), request.raw_path)
                sites.check(request.remote or "", request.headers, changes=changes, also=also)
            except Rejected as exc:
                on_rejected(exc.code)
                raise
        return await handler(request)

    return guard


def _counted(handler: Handler, on_call_rejected: Callable[[str], None]) -> Handler:
    """Wrap a handler so that ``on_call_rejected`` gets the code of each refusal."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except (Rejected, ProtocolError) as exc:
            on_call_rejected(exc.code)
            raise
        except ValidationError:
            on_call_rejected("invalid_body")
            raise

    return handle


def make_app(
    *,
    auth: Authenticator,
    health: Health,
    calls: Calls,
    ended: EndedCalls,
    webhooks: Webhooks,
    hub: DialogueHub,
    audio: AudioSockets,
    limits: LimitsConfig,
    metrics: Callable[[], Awaitable[bytes]] | None,
    version: str,
    sites: Sites,
    call_origins: Sequence[str] = (),
    on_call_rejected: Callable[[str], None] = lambda code: None,
    more: Sequence[Route] = (),
) -> web.Application:
    """Build the application.

    Args:
        metrics: returns the Prometheus exposition; None: it is switched off.
        sites: refuses pages of other sites.
        call_origins: sites whose pages may call us.
        on_call_rejected: called with the code when a call, or a request from another site's page, is refused.
        more: routes of optional parts (speech API, console, WebRTC).
    """

    async def dial_in(request: web.Request) -> web.StreamResponse:
        return await hub.handle(request, request[WHO], request[IS_GOOD])

    async def open_audio(request: web.Request) -> web.StreamResponse:
        return await audio.handle(request, request[WHO])

    routes = [
        Route(method="GET", path="/healthz", handler=health.live, summary="Liveness"),
        Route(method="GET", path="/readyz", handler=health.ready, summary="Readiness"),
        Route(method="GET", path="/v1/health", handler=health.show,
              summary="Gateway and engine", answer=HealthView),
        Route(
            method="GET", path="/v1/calls", handler=calls.list,
            summary="Live calls; ended=true: the call log, with filters, totals and order",
            answer=(CallList, EndedCallList), tags=["calls"]
        ),
        Route(
            method="POST", path="/v1/calls", handler=calls.place,
            summary="Place a call by SIP or at a carrier", body=PlaceCallBody,
            answer=AttemptView, tags=["calls"], begins_call=True,
        ),
        Route(
            method="GET", path="/v1/calls/{id}", handler=calls.show,
            summary="A call", answer=(CallView, AttemptView, EndedCallView), tags=["calls"]
        ),
        Route(
            method="GET", path="/v1/calls/{id}/recording", handler=ended.recording,
            summary="The recording of an ended call", content_type="audio/wav", tags=["calls"]
        ),
        Route(method="DELETE", path="/v1/calls/{id}", handler=calls.hang_up,
              summary="Hang up", tags=["calls"]),
        Route(
            method="POST", path="/v1/calls/{id}/messages", handler=calls.message,
            summary="A dialogue-manager message for a call", body=MessageBody, takes=(JSON,), tags=["calls"],
        ),
        Route(
            method="POST", path="/v1/calls/{id}/words", handler=calls.words,
            summary="Words as if the caller had said them", body=WordsBody, tags=["calls"],
        ),
        Route(
            method="GET", path="/v1/calls/{id}/events", handler=calls.events,
            summary="Messages of a call",
            content_type="text/event-stream", tags=["calls"],
        ),
        Route(
            method="GET", path="/v1/events", handler=calls.events, summary="Messages of all calls",
            content_type="text/event-stream", tags=["calls"],
        ),
        Route(
            method="GET", path="/v1/dialogue", handler=dial_in,
            summary="Dialogue manager dials in (WebSocket)",
            tags=["dialogue"],
        ),
        Route(
            method="GET", path="/v1/audio/{id}", handler=open_audio,
            summary="Raw audio of a call (WebSocket): s16le mono both ways at sampleRate, 8000, 16000 or 24000",
            tags=["dialogue"],
        ),
        *more,
    ]  # fmt: skip
    hooks: list[tuple[str, Handler, str]] = [
        ("", webhooks.start, "A call arrived; the answer starts the stream"),
        ("/after", webhooks.after, "The stream ended; the answer says what follows"),
        ("/status", webhooks.status, "Status callback: the progress of a placed call"),
    ]
    for suffix, hook, summary in hooks:
        for path in ("/webhooks/{dialect}", "/webhooks/{dialect}/{route}"):
            for method in ("GET", "POST"):
                routes.append(
                    Route(
                        method=method, path=path + suffix, handler=hook, summary=summary,
                        content_type="text/xml", tags=["webhooks"], begins_call=hook == webhooks.start,
                    )
                )  # fmt: skip
    routes.sort(key=lambda route: route.path.count("{"))  # /webhooks/twilio/after before /webhooks/{dialect}/{route}

    async def show_description(request: web.Request) -> web.Response:
        return web.json_response(description)

    async def show_metrics(request: web.Request) -> web.Response:
        assert metrics is not None
        return web.Response(body=await metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    routes += [
        Route(method="GET", path="/openapi.json", handler=show_description, summary="API description"),
    ]  # fmt: skip
    if metrics is not None:
        routes.append(
            Route(method="GET", path="/metrics", handler=show_metrics, summary="Prometheus metrics",
                  content_type="text/plain")
        )  # fmt: skip
    description = openapi(routes, version=version)

    app = web.Application(
        middlewares=[
            errors.middleware,
            _plain_addresses_only,
            _plain_bodies_only,
            _guarded_by(sites, call_origins, on_call_rejected),
        ],
        client_max_size=limits.message_bytes,
    )
    app[ROUTES], app[DESCRIPTION] = routes, description
    app.on_response_prepare.append(request_id.on_prepare)
    for route in routes:
        handler = auth.guard(route)
        if route.begins_call:
            handler = _counted(handler, on_call_rejected)
        app.router.add_route(route.method, route.path, handler)
    return app
