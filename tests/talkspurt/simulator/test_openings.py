"""The simulated carriers begin as observed calls do: the same keys with values of the same types."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from talkspurt.simulator.carriers import CARRIERS, VARIANTS
from talkspurt.simulator.carriers.carrier import SimulatedCarrier
from tests.gateway.carriers.observed import CALLS


def shape(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each path of a JSON value with the name of its type."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from shape(entry, f"{path}.{key}")
    elif isinstance(value, list):
        for entry in value:
            yield from shape(entry, path + "[]")
    else:
        yield path, type(value).__name__


def shapes(messages: Iterable[str | bytes]) -> set[tuple[str, str]]:
    """Return the shapes of all JSON messages, without our own parameters."""
    found: set[tuple[str, str]] = set()
    for message in messages:
        with suppress(ValueError):
            if isinstance(message, str):
                found |= {
                    each for each in shape(json.loads(message)) if "bot" not in each[0] and "talkspurt" not in each[0]
                }
    return found


OPENINGS = [
    *((name, carrier) for name, carrier in CARRIERS.items() if name not in ("sip", "audiosocket")),
    *((carrier.dialect, carrier) for carrier in VARIANTS.values()),
]


@pytest.mark.parametrize(("dialect", "carrier"), OPENINGS)
def test_an_opening_has_only_keys_of_observed_calls(dialect: str, carrier: type[SimulatedCarrier]) -> None:
    seen = shapes(message for call in CALLS if call.dialect == dialect for message in call.received)
    assert shapes(carrier(7, {"bot": "billing"}).opening()) - seen == set()
