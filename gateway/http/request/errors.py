"""Converts errors to HTTP answers with the body ``{"error": {"type", "code", "message", "param"}}``, for all routes."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable

from aiohttp import web
from pydantic import ValidationError

from gateway.errors import ClipError, ProtocolError, RecordingError, Rejected, did_you_mean
from gateway.http.request import rate_limit, request_id
from gateway.limits.limiter import LimitReached
from tts_engine.errors import EngineError, Exhausted, InvalidRequest

log = logging.getLogger(__name__)

_ENGINE_ERRORS = {
    "INVALID_ARGUMENT": (422, "invalid_value"),
    "NOT_FOUND": (404, "not_found"),
    "RESOURCE_EXHAUSTED": (429, "rate_limit_exceeded"),
    "UNAVAILABLE": (503, "unavailable"),
    "UNAUTHENTICATED": (503, "unavailable"),  # the engine refuses the gateway's credentials, not this client's
    "DEADLINE_EXCEEDED": (504, "timeout"),
    "INTERNAL": (500, "internal"),
}
"""Code of the engine -> status and code of the answer. Codes are words in lower case, as in OpenAI's errors."""


def retry_after(seconds: float) -> str:
    """Return the value of ``Retry-After`` (RFC 9110 section 10.2.3): ``seconds``, rounded up to whole seconds."""
    return str(max(1, math.ceil(seconds)))


def failure(
    status: int, code: str, message: str, *, param: str = "", retry_after_s: float = 0.0, kind: str = ""
) -> web.Response:
    """Return an error answer."""
    body = {
        "error": {
            "type": kind or ("server_error" if status >= 500 else "invalid_request_error"),
            "code": code,
            "message": message,
            "param": param,
        }
    }
    headers = {"Retry-After": retry_after(retry_after_s)} if retry_after_s else {}
    return web.json_response(body, status=status, headers=headers)


def of(exc: Exception) -> web.Response:
    """Return the answer to an error.

    Raises:
        Exception: ``exc`` itself, if it is a bug and not the client's fault.
    """
    match exc:
        case LimitReached():
            answer = failure(exc.status, exc.code, str(exc), param=exc.param, retry_after_s=exc.retry_after_s)
            answer.headers.update(rate_limit.headers(exc.standings))
            return answer
        case Rejected():
            return failure(exc.status, exc.code, str(exc), param=exc.param, retry_after_s=exc.retry_after_s)
        case ProtocolError():
            return failure(422, exc.code, str(exc), param=exc.field)
        case RecordingError():
            return failure(409, exc.code, str(exc), param="id")
        case ClipError():
            return failure(422, "clip", str(exc), param="source")
        case EngineError():
            status, code = _ENGINE_ERRORS.get(exc.code, (500, "internal"))
            field = exc.field if isinstance(exc, InvalidRequest) else ""
            wait_s = exc.retry_after_s if isinstance(exc, Exhausted) else 0.0
            return failure(status, code, str(exc), param=field, retry_after_s=wait_s)
        case ValidationError():
            first = exc.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            message = f"{where}: {first['msg']}" if where else first["msg"]
            return failure(422, "invalid_body", message, param=where)
        case _:
            raise exc


def _without_handler(request: web.Request, exc: web.HTTPException) -> str:
    """Return the message for a request that no handler takes, with the nearest path or the possible methods."""
    if isinstance(exc, web.HTTPMethodNotAllowed):
        return f"{request.method[:20]} is not possible here, expected {' or '.join(sorted(exc.allowed_methods))}"
    if exc is request.match_info.http_exception and exc.status == 404:
        paths = [resource.canonical for resource in request.app.router.resources()]
        return f"no such path{did_you_mean(request.path, paths)}"
    return exc.text or exc.reason


@web.middleware
async def middleware(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer every error as JSON. A bug is logged and answered with 500, without details."""
    try:
        return await handler(request)
    except web.HTTPException as exc:
        if exc.status < 400:
            raise
        return failure(exc.status, exc.reason.lower().replace(" ", "_"), _without_handler(request, exc))
    except Exception as exc:  # every failure gets an answer in the shape of the API
        if isinstance(exc, ConnectionResetError) and (request.transport is None or request.transport.is_closing()):
            return failure(499, "client_left", "")  # no one reads it
        try:
            return of(exc)
        except Exception:  # ``of`` raised it again, so it is a bug
            failed = {"request": request_id.of(request), "method": request.method, "path": request.path}
            log.exception("request failed", extra=failed)
            return failure(500, "internal", "internal error")
