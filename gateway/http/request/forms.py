"""Reads forms (``application/x-www-form-urlencoded``) as text."""

from __future__ import annotations

from aiohttp import web
from aiohttp.http import HttpProcessingError

from gateway.errors import Rejected
from gateway.http.request.routes import FORM

UNREADABLE = (ValueError, LookupError, HttpProcessingError)
"""Exceptions of aiohttp for an unreadable form: bytes outside its charset, an unknown charset, a part without a name,
an invalid header."""


BYTES, FIELDS = 64 * 1024, 256
"""Largest form. It is read before authentication, and a megabyte of fields takes most of a second."""


async def read_form(request: web.Request) -> dict[str, list[str]]:
    """Return the values of each field, in order. A body that is no form returns none.

    Raises:
        Rejected: 400, the form cannot be read; 413, it is too long.
    """
    fields: dict[str, list[str]] = {}
    if request.content_type == FORM:
        body = await request.read()
        count = body.count(b"&") + 1
        if len(body) > BYTES or count > FIELDS:
            raise Rejected(
                f"the form has {len(body)} bytes in {count} fields, expected {BYTES} in {FIELDS} at most",
                status=413, code="too_large",
            )  # fmt: skip
    try:
        for name, value in (await request.post()).items():
            fields.setdefault(name, []).append(str(value))
    except UNREADABLE as exc:
        raise unreadable(exc) from exc
    return fields


def unreadable(exc: Exception) -> Rejected:
    """Return the refusal of a form that cannot be read."""
    return Rejected(f"the form cannot be read: {exc!s:.120}", status=400, code="invalid_form")
