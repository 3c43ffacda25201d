"""Carriers as the configuration makes them, for tests."""

from collections.abc import Mapping
from typing import Any

from gateway.carriers.carrier import ConfiguredCarrier
from gateway.carriers.dialect import Dialect
from gateway.carriers.table import CARRIERS


def configured(name: str, **settings: Any) -> ConfiguredCarrier:
    """A carrier with these keys in its section."""
    return ConfiguredCarrier(CARRIERS[name], CARRIERS[name].settings.model_validate(settings))


def serializer(name: str, query: Mapping[str, str] | None = None, **settings: Any) -> Dialect:
    """A stream's dialect."""
    return configured(name, **settings).dialect(query or {})
