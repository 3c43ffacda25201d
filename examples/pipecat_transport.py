"""A pipecat transport to a telephone call: raw audio both ways (docs/raw-audio.md), with marks and clear.

The file stands alone: copy it beside your bot. It needs ``pipecat-ai`` (1.14), which is installed apart from talkspurt.
"""

from __future__ import annotations

import json
from typing import Any

from pipecat.audio.dtmf.types import KeypadEntry
from pipecat.frames.frames import (
    BotStoppedSpeakingFrame,
    Frame,
    InputAudioRawFrame,
    InputDTMFFrame,
    InputTransportMessageFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
    OutputDTMFFrame,
    OutputDTMFUrgentFrame,
    OutputTransportMessageFrame,
    OutputTransportMessageUrgentFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.serializers.base_serializer import FrameSerializer
from pipecat.transports.websocket.client import (
    WebsocketClientOutputTransport,
    WebsocketClientParams,
    WebsocketClientTransport,
)


class TalkspurtSerializer(FrameSerializer):
    """Frames to messages of the audio socket and back.

    Every message of the gateway that is no sound, key or interruption becomes an ``InputTransportMessageFrame``:
    ``setup``, ``mark``, ``prompt``, ``ended``. A message frame of yours is sent as it is:
    ``{"type": "transfer", ...}``.

    Args:
        sample_rate: rate of both directions, hertz.
    """

    def __init__(self, sample_rate: int) -> None:
        super().__init__()
        self._sample_rate = sample_rate
        self._marks = 0

    async def serialize(self, frame: Frame) -> str | bytes | None:
        if isinstance(frame, OutputAudioRawFrame):
            return frame.audio
        if isinstance(frame, InterruptionFrame):
            return _json(type="clear")
        if isinstance(frame, BotStoppedSpeakingFrame):  # all is sent; the mark comes back when all was heard
            self._marks += 1
            return _json(type="mark", name=f"said {self._marks}")
        if isinstance(frame, OutputDTMFFrame | OutputDTMFUrgentFrame):
            return _json(type="sendDigits", digits=frame.button.value)
        if isinstance(frame, OutputTransportMessageFrame | OutputTransportMessageUrgentFrame):
            return None if self.should_ignore_frame(frame) else json.dumps(frame.message)
        return None

    async def deserialize(self, data: str | bytes) -> Frame | None:
        if isinstance(data, bytes):
            return InputAudioRawFrame(audio=data, sample_rate=self._sample_rate, num_channels=1)
        message: dict[str, Any] = json.loads(data)
        if message["type"] == "dtmf" and message["digit"] in set(KeypadEntry):  # it has no A to D
            return InputDTMFFrame(button=KeypadEntry(message["digit"]))
        if message["type"] == "interrupt" and message["reason"] != "cancel":  # else it answers our own clear
            return InterruptionFrame()
        return InputTransportMessageFrame(message=message)


def _json(**message: str) -> str:
    return json.dumps(message)


class _Output(WebsocketClientOutputTransport):
    """Also sends ``clear`` when the bot is interrupted, a mark after each utterance, and keys as keys."""

    def _supports_native_dtmf(self) -> bool:
        return True

    async def _write_dtmf_native(self, frame: OutputDTMFFrame | OutputDTMFUrgentFrame) -> None:
        await self._write_frame(frame)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, InterruptionFrame):
            await self._write_frame(frame)

    async def push_frame(self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM) -> None:
        if isinstance(frame, BotStoppedSpeakingFrame) and direction is FrameDirection.DOWNSTREAM:
            await self._write_frame(frame)
        await super().push_frame(frame, direction)


class TalkspurtTransport(WebsocketClientTransport):
    """One telephone call. Put ``input()`` and ``output()`` at the ends of the pipeline; the end of the
    pipeline hangs up.

    Args:
        server: address of talkspurt, ``http://HOST:PORT``.
        audio: the field ``audio`` of the call's ``setup``.
        api_key: key of scope ``calls``. Empty: the server needs none.
        sample_rate: 8000, 16000 or 24000 Hz, for both directions. Give the worker the same rates.
    """

    def __init__(self, server: str, audio: str, *, api_key: str = "", sample_rate: int = 16000) -> None:
        super().__init__(
            f"ws{server.removeprefix('http')}{audio}?sampleRate={sample_rate}",
            WebsocketClientParams(
                serializer=TalkspurtSerializer(sample_rate),
                additional_headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
                audio_in_enabled=True,
                audio_in_sample_rate=sample_rate,
                audio_out_enabled=True,
                audio_out_sample_rate=sample_rate,
                audio_out_auto_silence=False,  # silence would be a turn that never ends
                audio_out_end_silence_secs=0,
            ),
        )

    def output(self) -> WebsocketClientOutputTransport:
        if self._output is None:
            self._output = _Output(self, self._session, self._params)
        return self._output
