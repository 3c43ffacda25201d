"""One session with the application, as the gateway opens it without extensions. It keeps all messages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import aiohttp

from gateway.carriers.signatures import twilio_signature
from gateway.config import LimitsConfig
from gateway.dialogue.line import CLOSE_REASON, NO_STATUS, setup_of
from gateway.dialogue.wire import BadMessage, decode, encode
from gateway.seams.leg import CallInfo
from gateway.seams.messages import End, Inbound, Outbound, Play, Prompt, SendDigits, Setup, Text, Transfer
from talkspurt import __version__

LIMITS = LimitsConfig()
"""The gateway's default bounds, which also bound the reading here."""

CLOSE_S = 0.5
"""Longest wait for the answer to our close, seconds, where no check examines that answer."""

NO_CLOSE_FRAME = 1006
"""Close code of a connection that ended without a close frame (RFC 6455, 7.4.1)."""

NO_CODE = 1005
"""Close code of a close frame without a code (RFC 6455, 7.4.1)."""


class CannotConnect(Exception):
    """There is no WebSocket at the address, or none that answers in time. The text never contains the address, whose
    query may contain a key."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings for playing the gateway. Times are in seconds.

    Args:
        wait_s: longest wait for an expected event: the connection, the first message of an answer, its end. quiet_s:
        time to listen for messages that should not come. slow_s: a first token that takes longer is worth a warning.
        stop_s: time for which tokens of a stream may still arrive after ``interrupt``, because they were on their way.
        headers: further headers of the request. auth_token: key of ``X-Twilio-Signature``; empty: the request is not
        signed.
    """

    url: str
    wait_s: float = 10.0
    quiet_s: float = 1.5
    slow_s: float = 2.0
    stop_s: float = 0.5
    prompt: str = "Hello, can you hear me?"
    long_prompt: str = "Please tell me a long story."
    headers: Mapping[str, str] = field(default_factory=dict)
    auth_token: str = ""


class CheckedSession:
    """A WebSocket to the application on which ``setup`` has been sent. Use it with ``async with``.

    Args:
        digits: the 32 hex digits of the ``sessionId``; empty: new ones.
        resumed: True if this connection continues a session after a loss.
    """

    def __init__(self, plan: Plan, client: aiohttp.ClientSession, *, digits: str = "", resumed: bool = False) -> None:
        self.plan = plan
        self.digits = digits or secrets.token_hex(16)
        self.messages: list[tuple[float, Inbound]] = []
        """Messages of the application, each with the loop's time of its arrival, seconds."""
        self.problems: list[str] = []
        """Messages that the gateway cannot read, one sentence for each."""
        self.close_code: int | None = None
        """Code of the application's close; None while it has not closed."""
        self._client = client
        self._resumed = resumed
        self._news = asyncio.Event()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reader: asyncio.Task[None] | None = None
        self._closing = False

    async def __aenter__(self) -> CheckedSession:
        self._socket = await self._connect()
        self._reader = asyncio.create_task(self._read(self._socket), name="conformance-read")
        await self.send(self._setup())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(CLOSE_S)

    async def _connect(self) -> aiohttp.ClientWebSocketResponse:
        plan = self.plan
        headers = {"User-Agent": f"talkspurt/{__version__}", **plan.headers}
        if plan.auth_token:
            headers["X-Twilio-Signature"] = twilio_signature(plan.auth_token, plan.url)
        try:
            async with asyncio.timeout(plan.wait_s):
                return await self._client.ws_connect(
                    plan.url,
                    headers=headers,
                    compress=0,
                    autoclose=False,
                    max_msg_size=LIMITS.message_bytes,
                    timeout=aiohttp.ClientWSTimeout(ws_close=plan.wait_s),
                )
        except TimeoutError:
            raise CannotConnect(f"no WebSocket within {plan.wait_s:g} s") from None
        except aiohttp.WSServerHandshakeError as exc:
            raise CannotConnect(
                f"answered with HTTP {exc.status} ({exc.message}), expected 101 of a WebSocket"
            ) from None
        except aiohttp.ClientResponseError:  # its text has several lines
            raise CannotConnect("answered with what is no HTTP, expected HTTP 101 of a WebSocket") from None
        except aiohttp.InvalidURL:
            raise CannotConnect("cannot connect: URL is no address") from None
        except aiohttp.ClientConnectorError as exc:
            why = "no server listens there" if isinstance(exc.os_error, ConnectionRefusedError) else exc
            raise CannotConnect(f"cannot connect: {why}") from None
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise CannotConnect(f"cannot connect: {exc or type(exc).__name__}") from None

    def _setup(self) -> Setup:
        call = CallInfo(
            call_id=f"VX{self.digits}",
            route="conformance",
            transport="twilio",
            call_sid=f"CA{self.digits}",
            account_sid="AC" + "0" * 32,
            from_="+15550100",
            to="+15550199",
            direction="inbound",
            call_type="PSTN",
            call_status="IN_PROGRESS" if self._resumed else "RINGING",
            custom_parameters={},
        )
        return replace(setup_of(call, codec="PCMU/8000", version=__version__), resumed=self._resumed)

    async def _read(self, websocket: aiohttp.ClientWebSocketResponse) -> None:
        """Read until one of the two sides closes."""
        while True:
            frame = await websocket.receive()
            if frame.type is aiohttp.WSMsgType.TEXT:
                self._take(frame.data)
            elif frame.type is aiohttp.WSMsgType.BINARY:
                self.problems.append(f"binary message of {len(frame.data)} bytes, expected JSON text")
            else:
                if frame.type is aiohttp.WSMsgType.ERROR:  # the frame breaks RFC 6455, or is too long
                    self.problems.append(str(frame.data))
                if frame.type is aiohttp.WSMsgType.CLOSE:
                    self.close_code = _code(frame.data)
                elif not self._closing:  # else we closed, and `close` gets the application's answer
                    self.close_code = NO_CLOSE_FRAME
                self._news.set()
                return
            self._news.set()

    def _take(self, text: str) -> None:
        try:
            _, message = decode(text, limits=LIMITS, multiplexed=False)
        except BadMessage as exc:
            self.problems.append(str(exc))
        else:
            self.messages.append((asyncio.get_running_loop().time(), message))

    @property
    def open(self) -> bool:
        """True while the application has not closed."""
        return self.close_code is None

    @property
    def silence(self) -> str:
        """Reason why nothing came, as a part of a sentence."""
        if not self.open:
            return f"the application closed with {self.close_code}"
        return "nothing that can be read came" if self.problems else "nothing came"

    async def send(self, message: Outbound) -> None:
        """Send one message of ConversationRelay; to a socket that is gone, nothing is sent."""
        text = encode(message, extensions=False)
        assert text is not None  # no check sends an extension
        await self.send_text(text)

    async def send_text(self, text: str) -> None:
        assert self._socket is not None
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
            await self._socket.send_str(text)

    async def until(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Wait until messages make the condition true, or the application closes. Return whether it is true."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not condition() and self.open:
                    self._news.clear()
                    await self._news.wait()
        return condition()

    async def more(self, number: int, within_s: float) -> bool:
        """Wait until more than ``number`` messages have come. Return False if they did not come."""
        return await self.until(lambda: len(self.messages) > number, within_s)

    def since(self, number: int) -> list[Inbound]:
        """Return the messages from index ``number``."""
        return [message for _, message in self.messages[number:]]

    async def until_quiet(self, within_s: float) -> bool:
        """Wait until the application has sent nothing for ``quiet_s``. Return False if it never paused that long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while await self.more(len(self.messages), self.plan.quiet_s):
                    pass
                return True
        return False

    async def ask(self, text: str) -> tuple[float | None, int]:
        """Send a final prompt and wait for the first message that answers it.

        Returns:
            The seconds until that message, None if none came; and the number of messages before the prompt.
        """
        number, begun = len(self.messages), asyncio.get_running_loop().time()
        await self.send(Prompt(voice_prompt=text, lang="en-US", last=True))
        await self.until(lambda: bool(self._answers(number)), self.plan.wait_s)
        came = self._answers(number)
        return (came[0] - begun if came else None), number

    def _answers(self, number: int) -> list[float]:
        """Return the arrival times of messages that answer a caller: speech, tones, or the end of the call."""
        kinds = Text | Play | SendDigits | End | Transfer
        return [at for at, message in self.messages[number:] if isinstance(message, kinds)]

    def closed_turns(self, number: int = 0) -> int:
        """Return the number of complete answers among the messages from index ``number``."""
        return sum(
            message.last if isinstance(message, Text) else isinstance(message, Play | SendDigits | End | Transfer)
            for message in self.since(number)
        )

    def drop(self) -> None:
        """Cut the TCP connection without a close frame."""
        assert self._socket is not None
        peer = self._socket.get_extra_info("socket")
        if peer is not None:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(peer.fileno())) as own:
                own.shutdown(socket.SHUT_RDWR)

    async def close(self, within_s: float) -> int | None:
        """Close with 1000, as at the end of a call.

        Returns:
            The code of the application's close frame, ``NO_CLOSE_FRAME`` if it cut the connection, None if it did
            neither in time.
        """
        if self._socket is None or self._reader is None:
            return None
        self._closing = True
        try:
            # The reader is not cancelled: aiohttp would treat that as the end of the connection, and would not wait for
            # the application's close frame. `close` makes the reader return.
            async with asyncio.timeout(within_s):
                await self._socket.close(code=1000, message=CLOSE_REASON)
                await self._reader
        except (TimeoutError, ConnectionError, aiohttp.ClientError):
            return None
        finally:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if isinstance(self._socket.exception(), TimeoutError):
            return None
        return self.close_code or _code(self._socket.close_code)


def _code(reported: object) -> int:
    """Return the close code that aiohttp reports."""
    return reported if isinstance(reported, int) and reported != NO_STATUS else NO_CODE
