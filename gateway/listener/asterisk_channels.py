"""Channels that an Asterisk holds open for us, ``Dial(WebSocket/INCOMING/...)``: there we are the one who connects."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping

from picows import WSHandshakeError, ws_connect

from gateway.config import AsteriskConfig
from gateway.errors import Rejected
from gateway.listener.connection import MediaConnection

log = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")
_ANSWERS = {404: ("unknown_call", "knows no such channel"), 409: ("live", "has that channel connected already")}


class AsteriskChannels:
    """Connects to channels by the id that ``MEDIA_WEBSOCKET_CONNECTION_ID`` holds.

    Args:
        connection: makes the connection of a route, with these parameters.
        max_message_bytes: larger messages close the socket.
    """

    def __init__(
        self,
        config: AsteriskConfig,
        connection: Callable[[str, Mapping[str, str]], MediaConnection],
        *,
        max_message_bytes: int,
    ) -> None:
        self._config = config
        self._connection = connection
        self._max_message_bytes = max_message_bytes

    async def attach(self, call: str, route: str, parameters: Mapping[str, str]) -> None:
        """Connect to a channel; its ``MEDIA_START`` then begins the call.

        Raises:
            Rejected: 404 and 409 as Asterisk says them, 502 where it cannot be reached.
        """
        if not _ID.fullmatch(call):
            raise Rejected(f"connection id is {call[:40]!r}, expected letters, digits and . _ : @ -",
                           status=422, code="invalid_id", param="call")  # fmt: skip
        url = f"{self._config.media_url.rstrip('/')}/{call}"
        connection = self._connection(route, parameters)
        try:
            await ws_connect(
                lambda: connection,
                url,
                websocket_handshake_timeout=self._config.connect_timeout_s,
                extra_headers={"Sec-WebSocket-Protocol": connection.dialect.subprotocols[0]},
                enable_auto_ping=True,
                max_frame_size=self._max_message_bytes,
                max_redirects=0,
            )
        except WSHandshakeError as exc:
            connection.forget()
            status = 0 if exc.response is None else int(exc.response.status)
            code, what = _ANSWERS.get(status, ("bad_gateway", f"answered {status or exc!r}"))
            raise Rejected(f"Asterisk {what}", status=status if status in _ANSWERS else 502, code=code) from exc
        except (OSError, TimeoutError) as exc:
            connection.forget()
            raise Rejected(f"cannot connect to Asterisk: {exc!r:.80}", status=502, code="bad_gateway") from exc
