"""Opens a WebSocket to a gateway, and raises one clear error if that fails."""

from __future__ import annotations

import json
from collections.abc import Mapping

from picows import WSHandshakeError, WSListener, ws_connect

MAX_MESSAGE_BYTES = 1 << 20


class PeerError(Exception):
    """The gateway cannot be reached or breaks the protocol. The message says where and why."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status of a refused upgrade; 0 if there was none."""


async def connect(
    listener: WSListener, url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 5.0
) -> None:
    """Connect ``listener``. Its ``on_ws_connected`` has run when this returns.

    Raises:
        PeerError: nobody listens there, or the upgrade was refused or not answered.
    """
    try:
        transport, _ = await ws_connect(
            lambda: listener,
            url,
            extra_headers=headers,
            websocket_handshake_timeout=timeout_s,
            max_frame_size=MAX_MESSAGE_BYTES,
            max_redirects=0,
        )
    except WSHandshakeError as exc:
        status = exc.response.status.value if exc.response is not None else 0
        raise PeerError(f"{url} refused the connection: {_reason(exc)}", status=status) from exc
    except (OSError, TimeoutError, ValueError) as exc:
        raise PeerError(unreachable(url, exc)) from exc
    if transport.response is None:  # picows takes a connection that was closed before the answer for one that is open
        raise PeerError(f"{url.partition('?')[0]} closed the connection before it answered the upgrade")


def unreachable(url: str, exc: Exception) -> str:
    """Return why there is no connection, and what to do about it. The query of the address is no place to look at."""
    why = (
        "nobody listens there; is the server running?"
        if isinstance(exc, ConnectionRefusedError)
        else exc or "timed out"
    )
    return f"cannot connect to {url.partition('?')[0]}: {why}"


def _reason(exc: WSHandshakeError) -> str:
    """Return the status, and what the gateway said about it."""
    if exc.response is None:
        return str(exc)
    body = exc.raw_body or b""
    try:
        said = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        said = body.decode("utf-8", "replace").strip()[:200]
    return f"HTTP {exc.response.status.value}" + (f", {said}" if said else "")
