"""Forms (``application/x-www-form-urlencoded``) as text, whatever arrives."""

from __future__ import annotations

from aiohttp import web
from aiohttp.http import HttpProcessingError

from gateway.errors import Rejected

UNREADABLE = (ValueError, LookupError, HttpProcessingError)
"""What aiohttp raises for a form that it cannot read: bytes that are not of its charset, a charset that nobody knows, a
part without a name, a header that is none."""


async def read_form(request: web.Request) -> dict[str, list[str]]:
    """Return the values of each field, in their order. A body that is no form gives none.

    Raises:
        Rejected: 400, the form cannot be read.
    """
    fields: dict[str, list[str]] = {}
    try:
        for name, value in (await request.post()).items():
            fields.setdefault(name, []).append(str(value))
    except UNREADABLE as exc:
        raise unreadable(exc) from exc
    return fields


def unreadable(exc: Exception) -> Rejected:
    """Return the refusal of a form that cannot be read."""
    return Rejected(f"the form cannot be read: {exc!s:.120}", status=400, code="invalid_form")
