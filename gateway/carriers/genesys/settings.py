"""Genesys' section."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from gateway.carriers.settings import CarrierSection
from gateway.config import NUMBER


def _base64(value: SecretStr) -> SecretStr:
    try:
        base64.b64decode(value.get_secret_value(), validate=True)
    except ValueError:
        raise ValueError("this is no base64, which Genesys Cloud shows client secrets in") from None
    return value


class GenesysConfig(CarrierSection):
    """Genesys Cloud AudioHook's secrets and options."""

    api_key: SecretStr | None = Field(None, min_length=1)
    """The integration's `X-API-KEY`."""
    client_secret: Annotated[SecretStr, AfterValidator(_base64)] | None = Field(None, min_length=1)
    """The integration's client secret, base64, which checks the signature of media sockets."""
    message_ms: Annotated[Literal[100, 200], NUMBER] = 200
    """Audio per message, milliseconds. 100 needs a peer that allows more than five messages a second."""
