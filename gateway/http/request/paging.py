"""The cursor of a paged list: a position in the order of (start, id), so that entries with equal times differ."""

from __future__ import annotations

import math

from gateway.errors import Rejected

Place = tuple[float, str]
"""Start (seconds since the epoch) and id of an entry."""


def place_text(place: Place) -> str:
    """Return a position as the value of a query parameter."""
    return f"{place[0]!r},{place[1]}"


def read_place(text: str, name: str) -> Place | None:
    """Read the result of ``place_text``. None: the text is empty.

    Args:
        name: the query parameter, for the error.

    Raises:
        Rejected: 422, the text is invalid.
    """
    if not text:
        return None
    start, comma, entry = text.partition(",")
    try:
        started_at = float(start)
    except ValueError:
        started_at = math.nan
    if not (math.isfinite(started_at) and comma and entry.isprintable()):
        raise Rejected(
            f"{name} is {text[:80]!r}, expected start and id from the previous page, such as 1795000000.5,VX01",
            status=422, code="invalid", param=name,
        )  # fmt: skip
    return started_at, entry


def read_limit(text: str, *, default: int, most: int) -> int:
    """Read ``limit``, the largest number of entries of a page.

    Raises:
        Rejected: 422, the text is not a number from 1 to ``most``.
    """
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise Rejected(f"limit is {text[:20]!r}, expected 1 to {most}", status=422, code="invalid", param="limit")
    return int(text)
