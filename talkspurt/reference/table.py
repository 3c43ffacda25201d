"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that ends with a newline. A column that is empty in every row is left out."""
    rows = list(rows)
    shown = [at for at in range(len(head)) if any(row[at] for row in rows)]
    lines = [[head[at] for at in shown], ["---"] * len(shown), *([row[at] for at in shown] for row in rows)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
