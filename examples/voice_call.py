"""The telephone's side of the agents in this folder: what came from the caller, what the caller has heard.

An agent is an async generator that takes a `Call` and yields the text of one answer, token by token. `run` serves it:

    python llm_agent.py                                                  talkspurt connects to ws://127.0.0.1:9000/
    python llm_agent.py "ws://127.0.0.1:8080/v1/dialogue?route=call"     the agent connects to talkspurt

The first way is `routes.NAME.dialogue.url` of the configuration, one WebSocket a call. The second is one WebSocket for
all calls of a route without `dialogue.url`. Needs: pip install websockets
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

Agent = Callable[["Call"], AsyncGenerator[str, None]]
Socket = ClientConnection | ServerConnection


class Call:
    """One telephone call. It outlives its WebSocket, since talkspurt comes back with the same `sessionId`."""

    def __init__(self, setup: dict[str, Any], agent: Agent) -> None:
        self.session_id: str = setup["sessionId"]
        self.setup = setup
        self.history: list[dict[str, Any]] = []
        """What a language model gets: OpenAI's messages. Of our answers it holds what the caller has heard."""
        self._socket: Socket | None = None
        self._connected = asyncio.Event()
        self._agent = agent
        self._answering: asyncio.Task[None] | None = None
        self._leaving: dict[str, Any] = {}
        """The message that ends our part of the call, behind the answer under way."""
        self._turn: list[dict[str, Any]] = []
        """The messages of `history` that the latest answer consists of."""
        self._turn_before: list[dict[str, Any]] = []
        """Those of the answer before."""

    def hand_over(self, reason: str, target: str = "") -> None:
        """Let a human take the call, after this answer. `target` needs `calling.allowed_targets`; without one
        the call ends, and whoever sent it to us (`/webhooks/.../after`, an IVR) reads the data and goes on."""
        self._leaving = {"type": "transfer", "target": target} if target else {"type": "end"}
        self._leaving["handoffData"] = json.dumps({"reason": reason, "history": self.history})

    async def receive(self, message: dict[str, Any]) -> None:
        """Act on a message of talkspurt's."""
        kind = message["type"]
        if kind == "prompt" and message["last"]:
            await self._hear(message["voicePrompt"], goes_on=message.get("continues", False))
        elif kind == "dtmf":
            await self._hear(f"(The caller pressed {message['digit']}.)")
        elif kind == "interrupt" and (not self._turn or message.get("reason") == "dtmf"):
            # A digit comes before what it interrupts: we are answering it already.
            self._keep_what_was_heard(self._turn_before, message["utteranceUntilInterrupt"])
        elif kind == "interrupt":
            self._stop()
            self._keep_what_was_heard(self._turn, message["utteranceUntilInterrupt"])
        elif kind == "error":
            print("talkspurt:", message["description"], file=sys.stderr)

    async def _hear(self, words: str, *, goes_on: bool = False) -> None:
        if self._stop():  # the caller went on before we said anything: the next answer preempts what has come
            await self._send(type="text", token="", last=True)
        if goes_on:  # we were answering the first half of a thought
            self._keep_what_was_heard(self._turn, "")
            words = f"{self._take_back_words()} {words}".lstrip()
        self.history.append({"role": "user", "content": words})
        self._turn_before, self._turn = self._turn, []
        self._answering = asyncio.create_task(self._answer())

    def _take_back_words(self) -> str:
        """Remove from the history what the caller said last."""
        for at, message in reversed(list(enumerate(self.history))):
            if message["role"] == "user":
                return str(self.history.pop(at)["content"])
        return ""

    async def _answer(self) -> None:
        try:
            async with aclosing(self._agent(self)) as answer:  # one that is stopped closes its request to the model
                async for token in answer:
                    await self._say(token)
        except Exception as exc:  # a model that fails must not leave a caller in silence
            print("agent:", repr(exc), file=sys.stderr)
            await self._say("Sorry, something went wrong. Please say that again.")
        self._check_wanted()
        await self._send(type="text", token="", last=True)
        if self._leaving:  # talkspurt says the answer to its end first
            await self._send(**self._leaving)

    def _check_wanted(self) -> None:
        """End an answer that was stopped and did not notice it: `asyncio.wait_for` of Python 3.11, which LangChain uses
        for each piece, may swallow a cancellation."""
        if asyncio.current_task() is not self._answering:
            raise asyncio.CancelledError

    async def _say(self, token: str) -> None:
        self._check_wanted()
        if not self._turn or self.history[-1] is not self._turn[-1]:
            self._turn.append({"role": "assistant", "content": ""})
            self.history.append(self._turn[-1])
        self._turn[-1]["content"] += token
        await self._send(type="text", token=token, last=False, preemptible=True)

    def _stop(self) -> bool:
        """Stop the answer under way, the request to the model and what was to follow. Was there one?"""
        answering, self._answering = self._answering, None
        self._leaving = {}
        return answering is not None and answering.cancel()

    def _keep_what_was_heard(self, turn: list[dict[str, Any]], heard: str) -> None:
        if not "".join(message["content"] for message in turn).startswith(heard):
            return  # it was the greeting that was cut
        for message in turn:
            message["content"], heard = heard[: len(message["content"])], heard[len(message["content"]) :]
        unheard = [id(message) for message in turn if not message["content"]]
        self.history[:] = [message for message in self.history if id(message) not in unheard]
        turn.clear()

    async def _send(self, **message: Any) -> None:
        while True:
            await self._connected.wait()
            socket = self._socket
            try:
                assert socket is not None
                return await socket.send(json.dumps({**message, "sessionId": self.session_id}))
            except ConnectionClosed:  # lost: the answer under way waits until talkspurt is back
                if socket is self._socket:
                    self._connected.clear()

    def connect(self, socket: Socket) -> None:
        """The call is on this WebSocket from now on."""
        self._socket = socket
        self._connected.set()

    def close(self) -> None:
        """The call is over."""
        self._stop()


async def _converse(socket: Socket, calls: dict[str, Call], agent: Agent) -> None:
    """Read one WebSocket to its end. A dialled-out one names its call in `setup` only, since it has no other."""
    session_id = ""
    with suppress(ConnectionClosed):  # lost: talkspurt comes back
        async for frame in socket:
            if not isinstance(frame, str):
                continue
            message = json.loads(frame)
            session_id = message.get("sessionId", session_id)
            if message["type"] == "setup":  # after a reconnect, keep the history of a known call
                calls.setdefault(session_id, Call(message, agent)).connect(socket)
            elif message["type"] == "ended":
                if session_id in calls:
                    calls.pop(session_id).close()
            elif session_id in calls:
                await calls[session_id].receive(message)
    if isinstance(socket, ServerConnection) and socket.close_code == 1000 and session_id in calls:
        calls.pop(session_id).close()


async def listen(agent: Agent, port: int) -> None:
    """Wait for talkspurt to connect, once a call."""
    calls: dict[str, Call] = {}
    async with serve(lambda socket: _converse(socket, calls, agent), "127.0.0.1", port) as server:
        print(f"waiting for calls at ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/", flush=True)
        await server.serve_forever()


async def dial_in(agent: Agent, url: str) -> None:
    """Connect to talkspurt, again and again. Calls wait for `dialogue.give_up_s` while nobody is connected."""
    calls: dict[str, Call] = {}
    key = os.environ.get("TALKSPURT_API_KEY", "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    while True:
        try:
            async with connect(url, additional_headers=headers) as socket:
                print(f"waiting for calls of {url}", flush=True)
                await _converse(socket, calls, agent)
        except InvalidStatus as exc:
            status = exc.response.status_code
            if status in (401, 403, 404):  # the same in a second
                sys.exit(f"{url} answers HTTP {status}: check the route, and TALKSPURT_API_KEY where keys are needed")
            print(f"{url}: HTTP {status}", file=sys.stderr)
        except (OSError, WebSocketException) as exc:
            print(f"{url}: {exc}", file=sys.stderr)
        await asyncio.sleep(1)


def run(agent: Agent) -> None:
    """Serve an agent until Ctrl-C: at `PORT` (9000), or connected to the address on the command line."""
    serving = dial_in(agent, sys.argv[1]) if len(sys.argv) > 1 else listen(agent, int(os.environ.get("PORT", "9000")))
    try:
        asyncio.run(serving)
    except OSError as exc:  # the port is in use
        sys.exit(f"{exc.strerror}: PORT=9001 takes another one, which `dialogue.url` then names")
    except KeyboardInterrupt:
        sys.exit(130)
