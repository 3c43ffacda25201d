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
    """Password of `username`."""
    sample_rate: Annotated[Literal[8000, 16000, 24000, 48000], NUMBER] = 8000
    """Sample rate of the start command, hertz, unless the address says `?rate=`."""
    streaming: bool = True
    """`bidir_stream` of the start command. Off, or with the old module: audio returns in `playAudio` files, without
    marks."""
    esl: EslConfig | None = None
    """The switch's event socket. Without it only the dialplan can end or transfer calls."""
