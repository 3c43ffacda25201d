"""Reads forms: ``application/x-www-form-urlencoded`` as text, ``multipart/form-data`` as text and one file."""

from __future__ import annotations

from collections.abc import Iterable

import aiohttp
from aiohttp import web
from aiohttp.http import HttpProcessingError

from gateway.errors import Rejected
from gateway.http.request.routes import FORM
from gateway.seams.plain_text import plain_lines

UNREADABLE = (ValueError, LookupError, RuntimeError, HttpProcessingError)
"""Exceptions of aiohttp for an unreadable form: bytes outside its charset, an unknown charset, a part without a name,
a name of the charset (``_charset_``) that is too long, an invalid header."""


BYTES, FIELDS = 64 * 1024, 256
"""Largest form. It is read before authentication, and a megabyte of fields takes most of a second."""


_FIELD_BYTES = 16 * 1024
"""Most bytes of one text field of a multipart form."""


async def read_form(request: web.Request) -> dict[str, list[str]]:
    """Return the values of each field, in order. A body of another type returns none.

    Raises:
        Rejected: 400, the form cannot be read; 413, it is too long.
    """
    fields: dict[str, list[str]] = {}
    if request.content_type != FORM:  # aiohttp would read a multipart form too, a megabyte of it
        return fields
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


async def read_multipart(
    request: web.Request, *, names: Iterable[str], file: str, most: int, limit: str = ""
) -> tuple[dict[str, list[str]], bytearray]:
    """Read a form part by part, with a limit for each. Return the values of each text field, and the file. The file is
    not copied as a whole, which would delay every call.

    Args:
        names: fields that the form may have.
        file: field with the file.
        most: most bytes of the file.
        limit: configuration key of ``most``.

    Raises:
        Rejected: 400, the form cannot be read; 413, a part is too long; 422, it has another field.
    """
    known = tuple(names)
    fields: dict[str, list[str]] = {}
    taken, parts = bytearray(), 0
    try:
        async for part in await request.multipart():
            parts += 1
            if parts > FIELDS:
                raise Rejected(f"the form has more than {FIELDS} fields", status=413, code="too_large")
            if not isinstance(part, aiohttp.BodyPartReader) or part.name not in known:
                raise Rejected(
                    f"the form has other fields than {', '.join(known)}", status=422, code="invalid_body", param=file
                )
            name = part.name
            data = bytearray()
            while piece := await part.read_chunk(65536):
                data += piece
                if name != file and len(data) > _FIELD_BYTES:
                    raise Rejected(
                        f"{name} is more than {_FIELD_BYTES} bytes", status=413, code="too_large", param=name
                    )
                if len(data) > most:
                    raise too_large(file, most, limit)
            if name == file:
                taken = data
            else:
                fields.setdefault(name, []).append(plain_lines(data.decode("utf-8", "replace")))
    except UNREADABLE as exc:
        raise unreadable(exc) from exc
    return fields, taken


def too_large(file: str, most: int, limit: str = "") -> Rejected:
    """Return the refusal of a file above ``most`` bytes."""
    key = f" ({limit})" if limit else ""
    return Rejected(f"{file} is more than {most} bytes{key}", status=413, code="too_large", param=file)


def unreadable(exc: Exception) -> Rejected:
    """Return the refusal of a form that cannot be read."""
    return Rejected(f"the form cannot be read: {exc!s:.120}", status=400, code="invalid_form")
