"""One session with the application, as the gateway opens it without extensions. It keeps all messages."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gateway.carriers.signatures import twilio_signature
from gateway.config import LimitsConfig
from gateway.dialogue.line import CLOSE_REASON, setup_of
from gateway.dialogue.wire import BadMessage, decode, encode
from gateway.seams.leg import CallInfo
from gateway.seams.messages import End, Inbound, Outbound, Play, Prompt, SendDigits, Setup, Text, Transfer
from gateway.websocket_client import CannotOpen, ConnectionClosed, OutgoingWebSocket, open_websocket
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
        signed. unix_path: UNIX socket on which the application listens; empty: the host of the URL.
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
    unix_path: str = ""


class CheckedSession:
    """A WebSocket to the application on which ``setup`` has been sent. Use it with ``async with``.

    Args:
        digits: the 32 hex digits of the ``sessionId``; empty: new ones.
        resumed: True if this connection continues a session after a loss.
    """

    def __init__(self, plan: Plan, *, digits: str = "", resumed: bool = False) -> None:
        self.plan = plan
        self.digits = digits or secrets.token_hex(16)
        self.messages: list[tuple[float, Inbound]] = []
        """Messages of the application, each with the loop's time of its arrival, seconds."""
        self.problems: list[str] = []
        """Messages that the gateway cannot read, one sentence for each."""
        self.close_code: int | None = None
        """Code of the application's close; None while it has not closed."""
        self._resumed = resumed
        self._news = asyncio.Event()
        self._socket: OutgoingWebSocket | None = None
        self._reader: asyncio.Task[None] | None = None
        self._closing = False

    async def __aenter__(self) -> CheckedSession:
        self._socket = await self._connect()
        self._reader = asyncio.create_task(self._read(self._socket), name="conformance-read")
        await self.send(self._setup())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(CLOSE_S)

    async def _connect(self) -> OutgoingWebSocket:
        plan = self.plan
        headers = {"User-Agent": f"talkspurt/{__version__}", **plan.headers}
        if plan.auth_token:
            headers["X-Twilio-Signature"] = twilio_signature(plan.auth_token, plan.url)
        try:
            async with asyncio.timeout(plan.wait_s):
                return await open_websocket(
                    plan.url,
                    headers=headers,
                    message_bytes=LIMITS.message_bytes,
                    close_s=2 * plan.wait_s,  # `close` has its own, shorter bound
                    unix_path=plan.unix_path,
                )
        except TimeoutError:
            raise CannotConnect(f"no WebSocket within {plan.wait_s:g} s") from None
        except CannotOpen as exc:
            if not exc.status:
                raise CannotConnect(str(exc)) from None
            raise CannotConnect(f"{exc} ({exc.phrase}), expected 101 of a WebSocket") from None

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

    async def _read(self, websocket: OutgoingWebSocket) -> None:
        """Read until one of the two sides closes."""
        try:
            while True:
                data = await websocket.recv()
                if isinstance(data, str):
                    self._take(data)
                else:
                    self.problems.append(f"binary message of {len(data)} bytes, expected JSON text")
                self._news.set()
        except ConnectionClosed as exc:
            if exc.sent is not None and not exc.rcvd_then_sent and not self._closing:
                # websockets has closed: a frame breaks RFC 6455, or is too long
                self.problems.append(exc.sent.reason or f"websockets closed with {exc.sent.code}")
            if exc.rcvd is not None:
                self.close_code = exc.rcvd.code
            elif not self._closing:  # else `close` tells apart a cut and a silent application
                self.close_code = NO_CLOSE_FRAME
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
        with contextlib.suppress(ConnectionClosed):
            await self._socket.send(text)

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
        self._socket.transport.abort()

    async def close(self, within_s: float) -> int | None:
        """Close with 1000, as at the end of a call.

        Returns:
            The code of the application's close frame, ``NO_CLOSE_FRAME`` if it cut the connection, None if it did
            neither in time.
        """
        if self._socket is None or self._reader is None or self._closing:
            return None
        self._closing = True
        try:
            async with asyncio.timeout(within_s):
                await self._socket.close(1000, CLOSE_REASON.decode())
                await self._reader
        except TimeoutError:
            return None
        finally:
            self._socket.transport.abort()
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        return self.close_code or NO_CLOSE_FRAME
