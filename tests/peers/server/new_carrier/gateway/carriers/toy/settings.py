"""The toy's section."""

from __future__ import annotations

from pydantic import Field, SecretStr

from gateway.carriers.settings import CarrierSection


class ToyConfig(CarrierSection):
    """The toy's secrets."""

    secret: SecretStr | None = Field(None, min_length=1)
    """Bearer of webhooks and media sockets."""
