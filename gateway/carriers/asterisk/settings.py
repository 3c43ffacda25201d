"""chan_websocket's section."""

from __future__ import annotations

from pydantic import Field, SecretStr

from gateway.carriers.settings import CarrierSection
from gateway.config import WebSocketUrl


class AsteriskConfig(CarrierSection):
    """Asterisk's chan_websocket."""

    username: str = ""
    """User name in `websocket_client.conf`, checked on media sockets."""
    password: SecretStr | None = Field(None, min_length=1)
    """Password of `username`."""
    answer: bool = False
    """Send `ANSWER` when the stream starts, for channels dialled with the option `n`."""
    media_url: WebSocketUrl = ""
    """Address for media sockets of `Dial(WebSocket/INCOMING/...)` channels, `ws://asterisk:8088/media`; `POST
    /v1/calls/attach` connects to them. Empty: none."""
