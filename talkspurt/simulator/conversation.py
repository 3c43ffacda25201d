"""The conversation of a simulated call, printed as it happens: the bot's words as they are heard, the caller's words
and keys. It follows the server's event stream, so the call's own dialogue manager does not matter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

import aiohttp
import orjson

_END_S = 1.0
"""Longest wait for the end of the event stream after the call, seconds."""


class Conversation:
    """Prints the conversation of one call.

    Args:
        call_sid: the carrier's id of the call.
        out: receives the lines.
    """

    def __init__(self, call_sid: str, out: TextIO) -> None:
        self._call_sid = call_sid
        self._out = out
        self._session = ""
        self._speaking = ""
        """The turn whose line is open."""
        self._begun = time.monotonic()
        self._over = asyncio.Event()

    async def follow(self, server: str, api_key: str, ready: asyncio.Event) -> None:
        """Print until the task is cancelled. ``ready`` is set when messages are received, or cannot be.

        Args:
            server: ``http://HOST:PORT``.
            api_key: key of scope ``read``. Empty: the server needs none.
        """
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            async with (
                aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None)) as http,
                http.get(f"{server}/v1/events") as events,
            ):
                if events.status != 200:
                    self._print("note", f"the conversation is not shown: {server}/v1/events answers {events.status}")
                    return
                ready.set()
                async for line in events.content:
                    if line.startswith(b"data:"):
                        self.take(orjson.loads(line[5:]))
        except aiohttp.ClientConnectorError:
            pass  # the call itself meets the same, and says so
        except (aiohttp.ClientError, OSError, orjson.JSONDecodeError, ValueError) as exc:
            self._print("note", f"the conversation is not shown: {exc}")
        finally:
            ready.set()
            self._over.set()

    async def end(self) -> None:
        """Wait for the message that the call has ended, and end the open line."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self._over.wait()
        self._end_line()

    def take(self, message: Mapping[str, Any]) -> None:
        """Take one message of the event stream. Those of other calls are ignored."""
        kind = message["type"]
        if kind == "setup" and message["callSid"] == self._call_sid:
            self._session = message["sessionId"]
            self._print("call", f"{message['from'] or 'a caller'} calls {message['to'] or 'the bot'}")
        if not self._session or message.get("sessionId") != self._session:
            return
        if kind == "caption":
            if message["turn"] != self._speaking:
                self._print("bot", message["text"].lstrip(), end="")
                self._speaking = message["turn"]
            else:
                self._write(message["text"])
        elif kind == "turn" and message["event"] in ("finished", "interrupted", "failed"):
            if message["event"] == "interrupted" and message["turn"] == self._speaking:
                self._write(f" -- cut by {message['reason']}")
            self._end_line()
        elif kind == "prompt" and message["last"]:
            self._print(_speaker(message), message["voicePrompt"])
        elif kind == "dtmf":
            self._print(_speaker(message), f"presses {message['digit']}")
        elif kind == "leg":
            self._print("person", message["event"])
        elif kind == "error":
            self._print("error", message["description"])
        elif kind == "ended":
            self._print("end", message["reason"])
            self._over.set()

    def _print(self, who: str, text: str, end: str = "\n") -> None:
        self._end_line()
        self._write(f"{time.monotonic() - self._begun:6.1f} s  {who:<7} {text}")
        self._out.write(end)

    def _end_line(self) -> None:
        if self._speaking:
            self._speaking = ""
            self._out.write("\n")

    def _write(self, text: str) -> None:
        self._out.write("".join(c if c.isprintable() else " " for c in text))
        self._out.flush()


def _speaker(message: Mapping[str, Any]) -> str:
    """Return who has said the words or pressed the key of a message: the words of a second leg name it."""
    return "person" if message.get("leg") else "caller"
