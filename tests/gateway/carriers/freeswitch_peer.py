"""FreeSWITCH's event socket as its documents describe it: auth, ``event json``, ``bgapi``, ``api``, ``sendmsg`` and its
events.

Channels are real to the extent that matters: a stream that is started connects, files wait in a queue until they
are played, and everything told about a channel is written down.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from tests.waiting import until

PASSWORD = "ClueCon"


class FreeSwitch:
    """The switch's end. ``async with`` it."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[str] = []
        """Commands that have come."""
        self.commands: list[str] = []
        """Those that were carried out."""
        self.channels: dict[str, dict[str, str]] = {}
        """Variables of each channel, by UUID."""
        self.queued: dict[str, list[str]] = {}
        """Files that each channel has still to play; the first one is being played."""
        self.executes: list[dict[str, str]] = []
        """Headers of each ``sendmsg``."""
        self.subscribed: list[str] = []
        self.logins = 0
        self.mute = False
        """Answers no command any more."""
        self.on_start: Callable[[str, str, list[str]], Awaitable[str]] | None = None
        """Called with module, UUID and the words behind ``start``; returns the module's answer."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> FreeSwitch:
        await self.listen()
        return self

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aexit__(self, *_: object) -> None:
        await self.go_down()

    async def go_down(self) -> None:
        """All connections and the listener go."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        await until(lambda: not self._writers, "the end of the connections")

    def event(self, name: str, uuid: str = "", body: str | None = None, **fields: str) -> None:
        """Tell of an event, if it was asked for; header names with underscores for dashes."""
        if (fields["Event_Subclass"] if name == "CUSTOM" else name) not in self.subscribed:
            return
        event = {"Event-Name": name, **{key.replace("_", "-"): value for key, value in fields.items()}}
        if uuid:
            event["Unique-ID"] = uuid
        if body is not None:
            event |= {"_body": body, "Content-Length": str(len(body))}
        self.tell(json.dumps(event).encode())

    def tell(self, data: bytes) -> None:
        """Send the bytes of an event to all."""
        for writer in self._writers:
            writer.write(b"Content-Length: %d\nContent-Type: text/event-json\n\n%b" % (len(data), data))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        jobs: set[asyncio.Task[None]] = set()
        try:
            writer.write(b"Content-Type: auth/request\n\n")
            authorised = False
            while True:
                request = (await reader.readuntil(b"\n\n")).decode().strip()
                first, *headers = request.split("\n")
                word, _, rest = first.partition(" ")
                if word == "auth":
                    authorised = rest == PASSWORD
                    self.logins += authorised
                    self._reply(writer, "+OK accepted" if authorised else "-ERR invalid")
                elif not authorised:
                    self._reply(writer, "-ERR command not found")
                elif word == "event":
                    self.subscribed = rest.split()
                    self._reply(writer, "+OK event listener enabled json")
                elif word == "sendmsg":
                    self._reply(writer, self._execute(rest, dict(line.split(": ", 1) for line in headers)))
                elif word == "api":
                    self.commands.append(rest)
                    answer = self._break(rest.split(" ")[1])
                    writer.write(f"Content-Type: api/response\nContent-Length: {len(answer)}\n\n{answer}".encode())
                elif word == "bgapi":
                    job = dict(line.split(": ", 1) for line in headers)["Job-UUID"]
                    self._reply(writer, f"+OK Job-UUID: {job}", job)
                    self.asked.append(rest)
                    if not self.mute:
                        task = asyncio.create_task(self._job(job, rest))
                        jobs.add(task)
                        task.add_done_callback(jobs.discard)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for task in jobs:
                task.cancel()
            self._writers.discard(writer)
            writer.close()

    def module(self, uuid: str, subclass: str, **body: object) -> None:
        """Tell of an event of mod_audio_stream."""
        self.event("CUSTOM", uuid, body=json.dumps(body), Event_Subclass=f"mod_audio_stream::{subclass}")

    def played(self, uuid: str, status: str = "done") -> None:
        """A channel has played a file to its end, and begins the next."""
        file = self.queued[uuid].pop(0)
        self.event("PLAYBACK_STOP", uuid, Playback_File_Path=file, Playback_Status=status)
        if self.queued[uuid]:
            self.event("PLAYBACK_START", uuid, Playback_File_Path=self.queued[uuid][0])

    def _execute(self, uuid: str, headers: dict[str, str]) -> str:
        if uuid not in self.channels:
            return f"-ERR invalid session id [{uuid}]"
        self.executes.append(headers)
        files = self.queued.setdefault(uuid, [])
        files.append(headers["execute-app-arg"])
        if len(files) == 1:
            self.event("PLAYBACK_START", uuid, Playback_File_Path=files[0])
        return "+OK"

    def _break(self, uuid: str) -> str:
        if uuid not in self.channels:
            return "-ERR No such channel!\n"
        if files := self.queued.get(uuid):
            del files[1:]
            self.played(uuid, "break")
        return "+OK\n"

    def _reply(self, writer: asyncio.StreamWriter, text: str, job: str = "") -> None:
        more = f"Job-UUID: {job}\n" if job else ""
        writer.write(f"Content-Type: command/reply\nReply-Text: {text}\n{more}\n".encode())

    async def _job(self, job: str, command: str) -> None:
        self.commands.append(command)
        answer = await self._obey(command.split(" "))
        self.event("BACKGROUND_JOB", Job_UUID=job, Job_Command=quote(command), body=answer)

    async def _obey(self, words: list[str]) -> str:
        name, arguments = words[0], words[1:]
        if name == "echo":
            return " ".join(arguments)
        if words == ["show", "channels", "as", "json"]:
            rows = [
                {"uuid": each, "application": told.get("application", "park")} for each, told in self.channels.items()
            ]
            return json.dumps({"row_count": len(rows), "rows": rows} if rows else {"row_count": 0})
        if not arguments or arguments[0] not in self.channels:
            return "-ERR No such channel!\n"
        uuid = arguments[0]
        match name:
            case "uuid_setvar_multi":
                self.channels[uuid] |= dict(pair.split("=", 1) for pair in arguments[1].split(";"))
            case "uuid_setvar":
                self.channels[uuid][arguments[1]] = arguments[2]
            case "uuid_getvar":
                return self.channels[uuid].get(arguments[1]) or "_undef_"
            case "uuid_kill":
                del self.channels[uuid]
            case "uuid_transfer":
                self.channels[uuid]["transferred"] = " ".join(arguments[1:])
            case "uuid_audio_stream" | "uuid_audio_fork" if arguments[1] == "start":
                assert self.on_start is not None
                return await self.on_start(name, uuid, arguments[2:])
            case "uuid_audio_stream" | "uuid_audio_fork" | "uuid_send_dtmf":
                pass
            case _:
                return f"-USAGE: {name}\n"
        return "+OK Success\n"


def kept(**more: Any) -> dict[str, Any]:
    """An ``esl`` section for tests."""
    return {"password": PASSWORD, **more}
