"""A bot that takes the caller's request and briefs a person before it hands the call over.

    HUMAN=sip:ann@192.0.2.10 python hand_over.py

talkspurt connects to ws://127.0.0.1:9000/ (`PORT`): `routes.NAME.dialogue.url`, with `dialogue.extensions: true`. The
people of `HUMAN` are called one after the other, separated by commas. `calling.allowed_targets` must list them.
docs/hand-over.md explains each step. Needs: pip install aiohttp
"""

from __future__ import annotations

import json
import os
from typing import Any

from aiohttp import web

WELCOME = "Hello. What can a colleague help you with?"
WAIT = "Thank you. I am looking for a colleague. Please hold on."
NOT_NOW = "I am sorry, no colleague is free. Is there anything else?"
BACK = "Your colleague has hung up. Is there anything else?"


class HandOver:
    """The messages of one call: what the caller wants, and who has been called about it."""

    def __init__(self, people: list[str]) -> None:
        self._people = people
        self._left: list[str] = []
        self._request = ""
        self._busy = False
        """True while a person is called or talks with the caller."""
        self._met = False
        """True once a person has accepted."""

    def receive(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the answers to a message of talkspurt's."""
        match message:
            case {"type": "setup", "resumed": True}:
                return []
            case {"type": "setup"}:
                return [say(WELCOME)]
            case {"type": "prompt", "last": True, "voicePrompt": words} if not self._busy and "leg" not in message:
                self._request, self._left = words, list(self._people)
                return [say(WAIT), *self._call_next()]
            case {"type": "leg", "event": "accepted"}:
                self._met = True
            case {"type": "leg", "event": "hangup"} if self._met:
                self._busy = self._met = False
                return [say(BACK)]
            case {"type": "error"} if self._busy and not self._met:
                return self._call_next()
        return []

    def _call_next(self) -> list[dict[str, Any]]:
        """Call the next person, or tell the caller that there is none."""
        self._busy = bool(self._left)
        if not self._left:
            return [say(NOT_NOW)]
        briefing = f"A caller says: {self._request}. Press one, or say yes, to take the call. Press two to decline."
        transfer = {
            "type": "transfer",
            "target": self._left.pop(0),
            "commit": True,
            "warm": {"briefing": briefing, "accept": ["1", "yes"], "decline": ["2", "no"]},
            "ringTimeoutS": 20,
            "acceptTimeoutS": 15,
            "onHangup": "return",
        }
        return [transfer]


def say(text: str) -> dict[str, Any]:
    """Return a whole turn of the bot."""
    return {"type": "text", "token": text, "last": True}


async def answer(request: web.Request) -> web.WebSocketResponse:
    """Lead one call."""
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    call = HandOver([each.strip() for each in os.environ["HUMAN"].split(",")])
    async for message in socket:
        for reply in call.receive(json.loads(message.data)):
            await socket.send_json(reply)
    return socket


if __name__ == "__main__":
    app = web.Application()
    app.router.add_get("/", answer)
    web.run_app(app, host="127.0.0.1", port=int(os.environ.get("PORT", "9000")))
