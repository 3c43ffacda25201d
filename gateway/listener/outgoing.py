"""Opens media sockets to switches that wait for them."""

from __future__ import annotations

from picows import WSHandshakeError, ws_connect

from gateway.carriers.switch import StreamNotOpened
from gateway.listener.connection import MediaConnection, picows_log


async def open_socket(connection: MediaConnection, url: str, *, timeout_s: float, max_message_bytes: int) -> None:
    """Open the socket of ``connection`` to a URL.

    Args:
        max_message_bytes: larger messages close the socket.

    Raises:
        StreamNotOpened: the peer refused or did not answer, or nothing listens at the address.
    """
    subprotocols = connection.dialect.subprotocols
    try:
        transport, _ = await ws_connect(
            lambda: connection,
            url,
            websocket_handshake_timeout=timeout_s,
            extra_headers={"Sec-WebSocket-Protocol": subprotocols[0]} if subprotocols else {},
            enable_auto_ping=True,
            max_frame_size=max_message_bytes,
            max_redirects=0,
            logger_name=picows_log,
        )
    except WSHandshakeError as exc:
        status = 0 if exc.response is None else int(exc.response.status)
        raise StreamNotOpened(status, f"answered {status or exc!r}") from exc
    except (OSError, TimeoutError) as exc:
        raise StreamNotOpened(0, f"cannot be reached: {exc!r:.80}") from exc
    if transport.response is None:  # picows treats a connection that closed before the answer as open
        raise StreamNotOpened(0, "closed the connection before it answered")
