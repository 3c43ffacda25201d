"""Attaches to channels that Asterisk keeps waiting with ``Dial(WebSocket/INCOMING/...)``. Here, the gateway opens the
connection."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.carriers.asterisk.settings import AsteriskConfig
from gateway.carriers.switch import StreamNotOpened, Switch, SwitchTools
from gateway.errors import Rejected

_CONNECT_S = 5.0
"""Longest wait for a connection to `media_url`, seconds."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")
_ANSWERS = {404: ("unknown_call", "knows no such channel"), 409: ("live", "has that channel connected already")}


def switch(settings: AsteriskConfig, tools: SwitchTools) -> Switch | None:
    """Make the switch of Asterisk's HTTP server; None if its address is not configured."""

    async def attach(call: str, route: str, parameters: Mapping[str, str]) -> None:
        """Connect to the channel whose ``MEDIA_WEBSOCKET_CONNECTION_ID`` is ``call``. Its ``MEDIA_START`` begins the
        call.

        Raises:
            Rejected: 404 and 409 are Asterisk's own answers; 502: Asterisk cannot be reached.
        """
        if not _ID.fullmatch(call):
            raise Rejected(f"connection id is {call[:40]!r}, expected letters, digits and . _ : @ -",
                           status=422, code="invalid_id", param="call")  # fmt: skip
        try:
            url = f"{settings.media_url.rstrip('/')}/{call}"
            await tools.open_stream(url, route, parameters, _CONNECT_S)
        except StreamNotOpened as exc:
            code, what = _ANSWERS.get(exc.status, ("bad_gateway", str(exc)))
            status = exc.status if exc.status in _ANSWERS else 502
            raise Rejected(f"Asterisk {what}", status=status, code=code) from exc

    return Switch(attach=attach) if settings.media_url else None
