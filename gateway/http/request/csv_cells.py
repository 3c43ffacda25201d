"""Cells of CSV answers. A spreadsheet runs a cell that begins like a formula, and callers choose their names.

OWASP, *CSV injection*: ``=``, ``+``, ``-``, ``@``, tab and carriage return; spreadsheets also skip blanks before them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The ASCII characters and their full-width forms, which spreadsheets of East Asian languages read alike."""
_UNSEEN = re.compile(r"^[\s\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]+")
"""Characters without width that a spreadsheet, or the tool before it, may drop."""


def guarded(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row whose texts are shown and never run: an apostrophe stands before what may be a formula."""
    return {name: f"'{cell}" if isinstance(cell, str) and _may_run(cell) else cell for name, cell in row.items()}


def _may_run(cell: str) -> bool:
    return cell[:1] in ("\t", "\r", "\n") or _UNSEEN.sub("", cell).startswith(_FORMULA)
