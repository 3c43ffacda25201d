"""Controls Telnyx calls that use Call Control instead of TeXML. Closing their socket ends only the stream, so hang-up,
transfer and DTMF use the REST API."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import quote
from uuid import uuid4

import aiohttp

from gateway.carriers.caller import told_call_sid
from gateway.carriers.telnyx.settings import TelnyxConfig
from gateway.seams.leg import CallEvents
from gateway.seams.media_messages import StreamStarted

log = logging.getLogger(__name__)

API_TIMEOUT_S = 10.0
"""Longest wait for an answer of the Call Control API, seconds."""

_KEYS = frozenset("0123456789ABCD*#w")
_TRIES = 3
_PAUSE_S = 0.5


class TelnyxCall:
    """One call, by its ``call_control_id``."""

    def __init__(self, calls: TelnyxCalls, call_control_id: str) -> None:
        self._calls = calls
        self._id = call_control_id

    def hang_up(self, reason: str, handoff_data: str | None) -> None:
        """End the call. ``client_state`` carries the hand-off data to the webhook ``call.hangup``."""
        self._calls.run(self._id, "hangup", _state(handoff_data))

    def transfer(self, target: str, handoff_data: str | None, reason: str) -> bool:
        """Transfer to a number or a SIP address. Telnyx has no field for the reason."""
        self._calls.run(self._id, "transfer", {"to": target, **_state(handoff_data)})
        return True

    def carries_dtmf(self, digits: str) -> bool:
        """Return True if all digits are keys or ``w``, a pause of half a second."""
        return bool(digits) and set(digits) <= _KEYS

    def send_dtmf(self, digits: str) -> bool:
        """Send DTMF by the command ``send_dtmf``."""
        self._calls.run(self._id, "send_dtmf", {"digits": digits})
        return True

    def clear(self) -> None:
        """Do nothing, because the stream has a message for this."""

    def close(self) -> None:
        """Do nothing: running commands belong to ``TelnyxCalls``."""


def _state(handoff_data: str | None) -> dict[str, str]:
    return {} if handoff_data is None else {"client_state": b64encode(handoff_data.encode()).decode()}


class TelnyxCalls:
    """The REST client of all Telnyx calls. Call ``aclose`` at the end."""

    def __init__(self, config: TelnyxConfig) -> None:
        assert config.api_key is not None
        self._url = config.api_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {config.api_key.get_secret_value()}"}
        self._timeout = aiohttp.ClientTimeout(total=API_TIMEOUT_S)
        self._http: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, started: StreamStarted, events: CallEvents) -> TelnyxCall | None:
        """Open the control of a call that has begun. None: our TeXML controls the call and continues after the
        stream."""
        if not started.call_sid or told_call_sid(started):
            return None
        return TelnyxCall(self, started.call_sid)

    def run(self, call_control_id: str, action: str, body: Mapping[str, str]) -> None:
        """Send a command in the background. It is repeated if it may have been lost; Telnyx runs it once."""
        task = asyncio.create_task(self._run(call_control_id, action, body), name=f"telnyx {action}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Close the client, after running commands had time to finish."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._timeout.total)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    async def _run(self, call_control_id: str, action: str, body: Mapping[str, str]) -> None:
        if self._http is None:
            self._http = aiohttp.ClientSession(headers=self._headers, timeout=self._timeout)
        url = f"{self._url}/calls/{quote(call_control_id, safe='')}/actions/{action}"
        command = {**body, "command_id": str(uuid4())}  # Telnyx runs commands with equal ids once
        why = ""
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(_PAUSE_S * attempt)
            try:
                async with self._http.post(url, json=command, allow_redirects=False) as answer:
                    if answer.status < 300:
                        return
                    said = await answer.content.read(4096)
                    if answer.status == 422 and b'"90018"' in said:
                        return  # the call has ended already
                    why = f"HTTP {answer.status}"
                    if answer.status < 500 and answer.status != 429:
                        break
            except (aiohttp.ClientError, TimeoutError) as exc:
                why = repr(exc)[:120]
        log.warning("telnyx command failed", extra={"action": action, "why": why})
