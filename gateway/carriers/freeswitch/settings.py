"""FreeSWITCH's section, with its event socket."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from gateway.carriers.settings import CarrierSection
from gateway.config import NUMBER, Section, WebSocketUrl


class EslConfig(Section):
    """FreeSWITCH's event socket, for ending and transferring calls, keys, and starting streams."""

    host: str = "127.0.0.1"
    """Address of `mod_event_socket`. The password crosses the network in clear text: private networks only."""
    port: int = Field(8021, gt=0, le=65535)
    """TCP port of `mod_event_socket`."""
    password: SecretStr = Field(min_length=1)
    """`password` of `event_socket.conf.xml`."""
    after: str = Field("", pattern=r"^[A-Za-z0-9_.+*#-]*$")
    """Extension for a call after the bot; channel variables hold the session's results. Empty: hang up."""
    context: str = Field("default", pattern=r"^[A-Za-z0-9_.-]+$")
    """Context of `after` and of transfers to numbers, in the XML dialplan."""
    sip_profile: str = Field("external", pattern=r"^[A-Za-z0-9_.-]+$")
    """Sofia profile of transfers to SIP addresses."""
    media_url: WebSocketUrl = ""
    """Our address as FreeSWITCH reaches it, `ws://talkspurt:8080`, for streams that we start. Empty:
    `server.public_url`."""


class FreeSwitchConfig(CarrierSection):
    """FreeSWITCH with mod_audio_stream."""

    token: SecretStr | None = Field(None, min_length=1)
    """Token of media sockets, `Authorization: Bearer` (`STREAM_EXTRA_HEADERS`)."""
    sample_rate: Annotated[Literal[8000, 16000, 24000, 32000, 48000], NUMBER] = 8000
    """Sample rate of the start command, hertz, unless the address says `?rate=`."""
    playback: Literal["binary", "file"] = "binary"
    """Way of audio back: `binary` messages with `rawAudio` (commercial edition), or `streamAudio` files (community
    edition), which `esl` plays. With files let `sample_rate` be that of the calls' codec."""

    esl: EslConfig | None = None
    """The switch's event socket. Without it only the dialplan can end or transfer calls."""
