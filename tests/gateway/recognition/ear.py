"""An ear that remembers."""

from __future__ import annotations

from tests.waiting import until


class Ear:
    """Remembers what a recogniser tells."""

    def __init__(self) -> None:
        self.partials: list[str] = []
        self.finals: list[str] = []

    def on_partial(self, text: str) -> None:
        self.partials.append(text)

    def on_final(self, text: str) -> None:
        self.finals.append(text)

    async def until_finals(self, count: int) -> None:
        await until(lambda: len(self.finals) >= count, f"{count} finals")
