"""The copy of one call to a session recording server (SIPREC): when it begins, pauses and ends."""

from __future__ import annotations

from gateway.call.hearing.caller import Caller
from gateway.call.outbox import Outbox
from gateway.config import RouteConfig
from gateway.seams.leg import CallInfo
from gateway.seams.messages import RecordState
from gateway.seams.session_recording import SessionRecording, SessionRecordingClient


class CallCopy:
    """Begins, pauses and ends the copy of a call. Nothing here disturbs the call.

    Args:
        client: sends the copy. None: this gateway has no SIP.
        caller: has the sound of both sides.
        outbox: tells the manager that the copy is lost.
    """

    def __init__(
        self, route: RouteConfig, client: SessionRecordingClient | None, caller: Caller, outbox: Outbox
    ) -> None:
        self._route = route
        self._client = client
        self._caller = caller
        self._outbox = outbox
        self._recording: SessionRecording | None = None

    def call_begins(self, call: CallInfo) -> None:
        """Begin the copy if the route wants one from the beginning."""
        if self._route.siprec.start == "call":
            self._begin(call)

    def record(self, state: RecordState, call: CallInfo) -> bool:
        """Begin, pause, resume or end the copy. False: there is none."""
        if state == "start":
            return self._recording is not None or self._begin(call)
        if self._recording is None:
            return False
        if state == "stop":
            self._over()
        else:
            self._recording.pause(state == "pause")
        return True

    def _begin(self, call: CallInfo) -> bool:
        rate, recorder = self._caller.listen_rate, self._route.siprec.recorder
        if self._client is None or not recorder or not rate:
            return False
        self._recording = self._client.record(call, recorder, rate=rate, on_lost=self._lost)
        self._caller.listeners.add(self._recording)
        return True

    def _over(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            self._caller.listeners.remove(recording)
            recording.end()

    def _lost(self, reason: str) -> None:
        self._over()
        self._outbox.recording_lost(f"session recording: {reason}")
