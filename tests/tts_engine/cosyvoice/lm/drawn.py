"""The tokens that a language model has drawn for a clause."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence


async def ids_of(groups: AsyncIterator[Sequence[int]]) -> list[int]:
    """Return all ids of a clause. They come in groups."""
    return [token async for group in groups for token in group]
