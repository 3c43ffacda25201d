"""Controls calls of FreeSWITCH over its event socket, because its two audio modules only carry audio.

Data of the dialogue manager goes into channel variables percent-encoded, because a dialplan would otherwise expand
variables in it.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any, Literal
from urllib.parse import quote

import orjson

from gateway.carriers.freeswitch.esl import EslClient, EslError
from gateway.carriers.freeswitch.file_queue import FileQueue
from gateway.carriers.freeswitch.settings import EslConfig
from gateway.errors import Rejected
from gateway.seams.leg import CallEvents
from gateway.seams.media_messages import StreamStarted

log = logging.getLogger(__name__)

_UUID = re.compile(r"[A-Za-z0-9-]{1,64}")
_NUMBER = re.compile(r"[A-Za-z0-9+*#_.-]{1,64}")
_SIP = re.compile(r"sips?:[A-Za-z0-9+*#_.~%!$&=;?/:@\[\]-]{1,256}")
_FILE = re.compile(r"/[A-Za-z0-9/_.-]{1,512}")
_KEYS = frozenset("0123456789*#ABCD")
_FILE_EVENTS = ("PLAYBACK_START", "PLAYBACK_STOP")
_MOST_CHANNELS = 2000
"""Most channels of a switch that are looked at after a log-in."""

_PARKED = ("park", "playback")
"""The applications of a channel while the bot has it: ``playback`` where the gateway plays files."""

_MODULE_EVENTS = ("CUSTOM", "mod_audio_stream::play", "mod_audio_stream::json")

Module = Literal["uuid_audio_stream", "uuid_audio_fork"]


class FreeSwitchCall:
    """One channel with a stream to this gateway."""

    def __init__(self, switch: FreeSwitchCalls, uuid: str, events: CallEvents) -> None:
        self._events: CallEvents | None = events
        """None: the stream has ended."""
        self._switch = switch
        self._uuid = uuid
        self._files = FileQueue()
        switch.esl.run(f"uuid_setvar {uuid} talkspurt_owner {_owner(switch.module)}")
        if switch.files:  # otherwise, the caller's * key would stop the file
            switch.esl.run(f"uuid_setvar {uuid} playback_terminators none")

    def hang_up(self, reason: str, handoff_data: str | None) -> None:
        """Continue the call at the extension ``after`` if one is configured, else end it."""
        self._leave_stream(reason, handoff_data, "", self._switch.afterwards)

    def transfer(self, target: str, handoff_data: str | None, reason: str) -> bool:
        """Transfer to a number in the dialplan or to a SIP address. False: the event socket is not connected, or the
        target cannot be dialled."""
        if not self._switch.connected:
            return False
        if _NUMBER.fullmatch(target):
            to = self._switch.extension(target)
        elif _SIP.fullmatch(target):
            to = f"bridge:sofia/{self._switch.config.sip_profile}/{target} inline"
        else:
            return False
        self._leave_stream(reason, handoff_data, target, to)
        return True

    def _leave_stream(self, reason: str, handoff_data: str | None, target: str, to: str) -> None:
        self._switch.move(self._uuid, to, reason=reason, handoff=handoff_data or "", target=target)

    def carries_dtmf(self, digits: str) -> bool:
        """Return True if all digits are keys or ``w``, a pause of half a second."""
        return self._switch.connected and bool(digits) and set(digits) <= _KEYS | {"w"}

    def send_dtmf(self, digits: str) -> bool:
        """Send the tones by ``uuid_send_dtmf``."""
        if not self.carries_dtmf(digits):
            return False
        self._switch.esl.run(f"uuid_send_dtmf {self._uuid} {digits}")
        return True

    def clear(self) -> None:
        """Stop playback."""
        if self._switch.flush_command:
            self._switch.esl.run(self._switch.flush_command.format(uuid=self._uuid))

    def on_playback(self, name: str, file: str) -> None:
        """Handle the start or the end of a file's playback on the channel."""
        if self._events is None:
            return
        if name != "PLAYBACK_START":
            for mark in self._files.ended(file):
                self._events.on_mark(mark)
        elif self._files.began(file):
            self._events.on_playback(started=True)

    def on_digit(self, digit: str) -> None:
        """Handle a key that the caller pressed."""
        if self._events is not None:
            self._events.on_digit(digit)

    def on_module(self, subclass: str, body: dict[str, Any]) -> None:
        """Handle an event of the module: a file of audio, which is queued for playback, or a message of our dialect."""
        match subclass, body:
            case "mod_audio_stream::play", {"file": str(file)} if _FILE.fullmatch(file):
                self._files.add(file)
                self._switch.esl.play(self._uuid, file)
            case "mod_audio_stream::play", _:
                log.warning("mod_audio_stream event names no file")
            case "mod_audio_stream::json", {"type": "rawAudio"}:
                log.warning(
                    "the caller hears nothing: this mod_audio_stream plays no binary messages (the community edition "
                    "does not), carriers.freeswitch.playback has to be file"
                )
            case "mod_audio_stream::json", {"type": "mark", "name": str(name)}:
                if self._files.mark(name) and self._events is not None:
                    self._events.on_mark(name)
            case "mod_audio_stream::json", {"type": "clear"}:
                if self._files.clear():
                    self._switch.esl.stop_playing(self._uuid)

    def close(self) -> None:
        """Forget the call after its stream."""
        self._switch.forget(self._uuid)
        self._events = None


class FreeSwitchCalls:
    """All calls of one switch.

    Args:
        module: the audio module of the streams.
        sample_rate: rate of the streams that we start, Hz.
        flush_command: command that empties the queue, with ``{uuid}``. Empty: the stream has a message for that.
        start_options: the text after the rate in the start command.
        stop_options: the text after the stop command.
        files: True if the module writes our audio to files, which the gateway then plays.
        variables: channel variables that a stream needs before it starts.
        media_url: returns the address of a route's stream, with its token and these parameters.
    """

    def __init__(
        self,
        config: EslConfig,
        module: Module,
        *,
        sample_rate: int,
        flush_command: str,
        start_options: str,
        variables: Mapping[str, str],
        media_url: Callable[[str, Mapping[str, str]], str],
        stop_options: str = "",
        files: bool = False,
    ) -> None:
        self.config = config
        self.module = module
        self.flush_command = flush_command
        self.stop_options = stop_options
        self.files = files
        self._sample_rate = sample_rate
        self._start_options = start_options
        self._variables = variables
        self._media_url = media_url
        self._calls: dict[str, FreeSwitchCall] = {}
        events = (*(_FILE_EVENTS if files else ()), *(_MODULE_EVENTS if module == "uuid_audio_stream" else ()))
        self.esl = EslClient(config, ("DTMF", *events), self._on_event, self._rescue)

    @property
    def connected(self) -> bool:
        """True while the event socket is connected."""
        return self.esl.connected

    def open(self, started: StreamStarted, events: CallEvents) -> FreeSwitchCall | None:
        """Open the control of a call that has begun. None: its stream has not named the channel's UUID."""
        uuid = started.call_sid
        if not _UUID.fullmatch(uuid):
            log.warning("stream names no channel uuid: its call cannot be ended or transferred")
            return None
        call = self._calls[uuid] = FreeSwitchCall(self, uuid, events)
        return call

    def forget(self, uuid: str) -> None:
        """Forget a call whose stream has ended."""
        self._calls.pop(uuid, None)

    def extension(self, number: str) -> str:
        """Return the arguments of ``uuid_transfer`` for an extension."""
        return f"{number} XML {self.config.context}"

    @property
    def afterwards(self) -> str:
        """The arguments of ``uuid_transfer`` for a call after the bot. Empty: it ends."""
        return self.extension(self.config.after) if self.config.after else ""

    def move(self, uuid: str, to: str, **variables: str) -> None:
        """Stop a channel's stream, and transfer the channel to ``to``, or end it if that is empty."""
        told = ";".join(f"talkspurt_{name}={quote(value, safe='')}" for name, value in variables.items())
        self.esl.run(
            f"uuid_setvar_multi {uuid} {told};talkspurt_owner=",
            f"{self.module} {uuid} stop {self.stop_options}".rstrip(),
            f"uuid_transfer {uuid} {to}" if to else f"uuid_kill {uuid}",
        )

    async def _rescue(self) -> None:
        """Send on the callers whose gateway process on this machine has died.

        Their channels are parked in silence, and nothing else moves them. The other processes of this machine and
        gateways on other machines keep theirs.
        """
        try:
            rows = orjson.loads(await self.esl.command("show channels as json")).get("rows", ())
            for row in rows[:_MOST_CHANNELS]:
                uuid = str(row.get("uuid", ""))
                if row.get("application") not in _PARKED or uuid in self._calls or not _UUID.fullmatch(uuid):
                    continue
                owner = (await self.esl.command(f"uuid_getvar {uuid} talkspurt_owner")).strip()
                if _is_dead(owner, self.module) and uuid not in self._calls:
                    log.warning("a caller of a gateway that died is sent on", extra={"channel": uuid})
                    self.move(
                        uuid, self.extension(self.config.after) if self.config.after else "", reason="unreachable"
                    )
        except (EslError, ValueError, AttributeError, TypeError) as exc:
            log.warning("channels without a gateway were not looked for", extra={"why": str(exc)})

    async def attach(self, call: str, route: str, parameters: Mapping[str, str]) -> None:
        """Start a stream from a channel to this gateway.

        Raises:
            Rejected: 422: the call is not a UUID; 502: the switch cannot be reached or refuses.
        """
        if not _UUID.fullmatch(call):
            raise Rejected(f"channel is {call[:40]!r}, expected its UUID", status=422, code="invalid_id", param="call")
        rate = self._sample_rate
        url = self._media_url(route, {**parameters, "uuid": call, "rate": str(rate)})
        shown = {8000: "8k", 16000: "16k"}.get(rate, str(rate))
        start = f"{self.module} {call} start {url} mono {shown} {self._start_options}".rstrip()
        try:
            if self._variables:
                told = ";".join(f"{name}={value}" for name, value in self._variables.items())
                await self.esl.command(f"uuid_setvar_multi {call} {told}")
            await self.esl.command(start)
        except EslError as exc:
            raise Rejected(f"FreeSWITCH: {exc}", status=502, code="bad_gateway") from exc

    def _on_event(self, event: Mapping[str, str]) -> None:
        call = self._calls.get(event.get("Unique-ID", ""))
        if call is None:
            return
        match event.get("Event-Name"):
            case "DTMF":
                digit = event.get("DTMF-Digit", "").upper()
                if digit in _KEYS:
                    call.on_digit(digit)
            case "PLAYBACK_START" | "PLAYBACK_STOP" as name:
                call.on_playback(name, event.get("Playback-File-Path", ""))
            case "CUSTOM":
                try:
                    body = orjson.loads(event.get("_body", ""))
                except ValueError:
                    body = None
                call.on_module(event.get("Event-Subclass", ""), body if isinstance(body, dict) else {})


def _owner(module: str) -> str:
    """Return the name of this process's calls with a module, for a channel variable: machine, process id, module."""
    return f"{re.sub('[^A-Za-z0-9.-]', '-', socket.gethostname())}:{os.getpid()}:{module}"


def _is_dead(owner: str, module: str) -> bool:
    """Return True if a process of this machine is named, and it is over.

    A name like our own counts too: in a container, the process of the next start has the same id.
    """
    if owner == _owner(module):
        return True
    machine, _, rest = owner.partition(":")
    pid, _, its_module = rest.partition(":")
    if machine != _owner(module).partition(":")[0] or its_module != module or not re.fullmatch("[0-9]{1,9}", pid):
        return False
    return os.path.isdir("/proc/self") and not os.path.exists(f"/proc/{pid}")
