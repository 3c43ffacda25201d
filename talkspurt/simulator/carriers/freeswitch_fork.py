"""The switch's side of FreeSWITCH's mod_audio_fork. It speaks jambonz's protocol; the first message is the metadata of
the start command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

from talkspurt.simulator.carriers.carrier import CarrierHangsUp, Command, Noted
from talkspurt.simulator.carriers.jambonz import JambonzCarrier
from voicecodecs.registry import AudioFormat


class FreeSwitchForkCarrier(JambonzCarrier):
    """One ``uuid_audio_fork`` of one call, at 8 kHz."""

    dialect: ClassVar = "freeswitch-fork"
    format: ClassVar = AudioFormat("L16", 8000)
    subprotocol: ClassVar = "audio.drachtio.org"

    def opening(self) -> Sequence[str]:
        return [json.dumps({"callSid": self.call_sid, **self._metadata})]

    def read(self, message: bytes, *, binary: bool = False) -> Command:
        command = super().read(message, binary=binary)
        return (
            Noted() if isinstance(command, CarrierHangsUp) else command
        )  # here it is only an event for the ESL application


CARRIER = FreeSwitchForkCarrier
