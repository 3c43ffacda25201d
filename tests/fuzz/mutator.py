"""A small mutator whose cases depend on nothing but a seed, for runs without a coverage-guided fuzzer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.fuzz.target import Target

_EDGES = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b" ",
    b"\r\n",
    b"-1",
    b"0",
    b"65536",
    b"4294967296",
    b"\xed\xa0\x80",
    b"\xd9\xa3",
)


def cases(target: Target, corpus: Sequence[bytes], count: int, *, seed: int = 1) -> Iterator[bytes]:
    """Yield ``count`` mutated cases of a target, the same for the same seed."""
    luck = random.Random(f"{target.name} {seed}")
    words = (*target.words, *_EDGES)
    for _ in range(count):
        case = luck.choice(corpus)
        for _ in range(1 + int(luck.expovariate(0.6))):
            case = _changed(case, luck.choice(corpus), luck.choice(words), luck)
        yield case[: target.max_bytes]


def _changed(case: bytes, other: bytes, word: bytes, luck: random.Random) -> bytes:
    """Return a case with one change: a byte, a part removed, repeated or moved, a word, or the end of another case."""
    first, last = sorted(luck.randint(0, len(case)) for _ in range(2))
    last = min(last, first + 64)
    match luck.randrange(8):
        case 0:
            return case[:first] + bytes((luck.randrange(256),)) + case[first + 1 :]
        case 1:
            return case[:first] + case[last:]
        case 2:
            return case[:last] + case[first:last] * luck.choice((1, 1, 2, 30)) + case[last:]
        case 3 | 4:
            return case[:first] + word + case[first:]
        case 5:
            return case[:first] + word + case[last:]
        case 6:
            return case[:first] + other[luck.randint(0, len(other)) :]
        case _:
            return case[:first]
