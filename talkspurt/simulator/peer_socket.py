"""Opens a WebSocket to a gateway, and raises one clear error if that fails."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

from picows import WSHandshakeError, WSListener, ws_connect

MAX_MESSAGE_BYTES = 1 << 20
HTTP_HINT = "; add ?http=HOST:PORT to the call's address to name the HTTP server"


class PeerSocketError(Exception):
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
        PeerSocketError: no server listens there, or the upgrade was refused or not answered.
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
        raise PeerSocketError(f"{url} refused the connection: {_reason(exc)}", status=status) from exc
    except (OSError, TimeoutError, ValueError) as exc:
        raise PeerSocketError(unreachable(url, exc)) from exc
    if transport.response is None:  # picows reports a connection that was closed before the answer as open
        raise PeerSocketError(f"{url.partition('?')[0]} closed the connection before it answered the upgrade")


def http_server(url: str) -> str:
    """Return the ``host:port`` of the HTTP server of a gateway that is called over another protocol.

    The call's address names it as ``?http=[HOST:]PORT``. By default it is at port 8080 of the call's host, or of
    127.0.0.1 for every loopback address: SIP is often at 127.0.0.2, because a switch uses the ports of 127.0.0.1.

    Raises:
        PeerSocketError: the address names no port.
    """
    parts = urlsplit(url)
    given = parse_qs(parts.query).get("http", ["8080"])[0]
    host, _, port = given.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise PeerSocketError(f"http={given[:80]} in the call's address is wrong, expected PORT or HOST:PORT")
    called = urlsplit(f"//{parts.netloc or parts.path.rpartition('@')[2]}").hostname or ""
    return f"{host or ('127.0.0.1' if called.startswith('127.') else called)}:{port}"


def unreachable(url: str, exc: Exception) -> str:
    """Return the reason why there is no connection, with advice. The address is shown without its query."""
    why = "no server listens there; is it running?" if isinstance(exc, ConnectionRefusedError) else exc or "timed out"
    return f"cannot connect to {url.partition('?')[0]}: {why}"


def _reason(exc: WSHandshakeError) -> str:
    """Return the status, with the gateway's text."""
    if exc.response is None:
        return str(exc)
    body = exc.raw_body or b""
    try:
        said = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        said = body.decode("utf-8", "replace").strip()[:200]
    return f"HTTP {exc.response.status.value}" + (f", {said}" if said else "")
