"""The load: turns that a simulated dialogue manager sends. The standard ones are made, others are read from a file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talkspurt.bench import standard_load as standard

STANDARD = Path(__file__).parents[2] / "benchmarks" / "load" / "standard.jsonl"
"""The standard load as a file of the repository. An installed package generates it (``standard_load``)."""


class LoadError(ValueError):
    """The load cannot be read, or all its turns have been spoken."""


@dataclass(frozen=True, slots=True)
class LoadTurn:
    """One turn of a load."""

    clauses: tuple[str, ...]
    pause_s: float
    """Silence before this turn, seconds."""

    @property
    def text(self) -> str:
        return " ".join(self.clauses)

    def tokens(self) -> tuple[list[str], int]:
        """Return the text as a language model streams it, and the index of the token that completes the first clause.

        A token is a word with the space before it. A clause is complete with its last word, which carries the
        punctuation.
        """
        words = self.text.split(" ")
        return [words[0], *(f" {word}" for word in words[1:])], len(self.clauses[0].split(" ")) - 1


class TurnSupply:
    """Hands out turns. Each turn comes once, because a text that was spoken before may come from a cache."""

    def __init__(self, turns: Iterator[LoadTurn], name: str) -> None:
        self._turns = turns
        self._clauses: list[str] = []
        """Unspoken clauses of the latest turn, for ``next_sentence``."""
        self.name = name
        self.used = 0

    def next(self) -> LoadTurn:
        """Return a turn that was not spoken yet.

        Raises:
            LoadError: all turns are used.
        """
        turn = next(self._turns, None)
        if turn is None:
            raise LoadError(
                f"load {self.name} has {self.used} turns and all are used; take fewer calls or seconds, "
                "or write more with benchmarks/load/generate.py --turns N"
            )
        self.used += 1
        return turn

    def next_sentence(self) -> str:
        """Return a sentence that was not spoken yet: a turn's clauses, up to one without a comma at its end.

        Raises:
            LoadError: all turns are used.
        """
        if not self._clauses:
            self._clauses = list(self.next().clauses)
        sentence = self._clauses.pop(0)
        while sentence.endswith(",") and self._clauses:
            sentence += " " + self._clauses.pop(0)
        return sentence

    def long_text(self, characters: int) -> str:
        """Return several turns as one text of at least ``characters`` characters."""
        texts: list[str] = []
        while sum(map(len, texts)) < characters:
            texts.append(self.next().text)
        return " ".join(texts)


def standard_load(turns: int = standard.TURNS) -> TurnSupply:
    """Return the standard load, equal to the file ``STANDARD``. More ``turns`` extend it."""
    made = standard.turns(turns, standard.SEED)
    return TurnSupply((_turn(body) for body in made), STANDARD.stem)


def read_load(path: Path) -> TurnSupply:
    """Read a load file.

    Raises:
        LoadError: there is no such file, or a line is not a turn.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as exc:
        raise LoadError(f"cannot read the load {path}: {exc.strerror}") from exc
    turns = []
    for number, line in enumerate(lines, 1):
        try:
            turns.append(_turn(json.loads(line)))
        except (ValueError, KeyError, TypeError) as exc:
            raise LoadError(f'{path}:{number}: expected {{"clauses": [...], "pause_ms": N}}, got {exc!r}') from exc
    return TurnSupply(itertools.chain(turns), path.stem)


def _turn(body: Mapping[str, Any]) -> LoadTurn:
    return LoadTurn(tuple(map(str, body["clauses"])), float(body["pause_ms"]) / 1000)
