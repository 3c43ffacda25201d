"""mod_audio_fork's section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from gateway.carriers.freeswitch.settings import EslConfig
from gateway.carriers.settings import CarrierSection
from gateway.config import NUMBER


class FreeSwitchForkConfig(CarrierSection):
    """FreeSWITCH with mod_audio_fork."""

    username: str = ""
    """`MOD_AUDIO_BASIC_AUTH_USERNAME`, checked on media sockets."""
    password: SecretStr | None = Field(None, min_length=1)
    """Its password."""
    sample_rate: Annotated[Literal[8000, 16000, 24000, 48000], NUMBER] = 8000
    """Rate of the start command, unless the address says `?rate=`, hertz."""
    streaming: bool = True
    """`bidir_stream` of the start command. Off, and with the old module: `playAudio` files, without marks."""
    esl: EslConfig | None = None
    """The switch's event socket; without it nobody but the dialplan can end or transfer calls."""
