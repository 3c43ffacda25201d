"""Cells of CSV answers. A spreadsheet runs a cell that begins like a formula, and callers choose their names.

OWASP, *CSV injection*: ``=``, ``+``, ``-``, ``@``, tab and carriage return, also after a separator within a cell, and
after a quotation mark there. Spreadsheets also skip blanks before them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

_SEPARATOR = re.compile(r"(?<=[;\t\r\n|])")
"""A place within a cell where a spreadsheet may begin another one. It splits at semicolons where the comma is
the decimal point."""
_UNSEEN = ("C", "Z", "M")
"""Unicode categories of characters without a shape of their own, which a spreadsheet, or the tool before it, may
drop."""
_FILLERS = "\u115f\u1160\u3164\uffa0"
"""Letters without a shape."""


def guarded(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row whose texts are shown and never run: an apostrophe stands before what may be a formula."""
    return {name: _guarded(cell) if isinstance(cell, str) else cell for name, cell in row.items()}


def _guarded(cell: str) -> str:
    if cell[:1] in ("\t", "\r", "\n"):
        return f"'{cell}"
    return "".join(f"'{part}" if _may_run(part) else part for part in _SEPARATOR.split(cell))


def _may_run(part: str) -> bool:
    for character in part:
        # The form in which spreadsheets of East Asian languages read full-width and small signs.
        shown = unicodedata.normalize("NFKC", character)
        if unicodedata.category(character)[0] not in _UNSEEN and shown != '"' and character not in _FILLERS:
            return shown.startswith(("=", "+", "-", "@", "\u2212"))
    return False
