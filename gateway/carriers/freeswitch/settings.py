"""FreeSWITCH's section, with its event socket."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from gateway.carriers.settings import CarrierSection
from gateway.config import NUMBER, Section


class EslConfig(Section):
    """FreeSWITCH's event socket. Over it we end and transfer calls, hear their keys and start streams."""

    host: str = "127.0.0.1"
    """Address that `mod_event_socket` listens on. The password crosses the network in clear text, so use only a private
    network."""
    port: int = Field(8021, gt=0, le=65535)
    """TCP port that `mod_event_socket` listens on."""
    password: SecretStr = Field(min_length=1)
    """`password` of `event_socket.conf.xml`."""
    after: str = Field("", pattern=r"^[A-Za-z0-9_.+*#-]*$")
    """Extension where a call goes on when the bot ends it; channel variables tell what the session left behind. Empty:
    hang up."""
    dialplan: str = Field("XML", pattern=r"^[A-Za-z0-9_-]+$")
    """Dialplan of `after` and of transfers to numbers."""
    context: str = Field("default", pattern=r"^[A-Za-z0-9_.-]+$")
    """Context of `after` and of transfers to numbers."""
    sip_profile: str = Field("external", pattern=r"^[A-Za-z0-9_.-]+$")
    """Sofia profile of transfers to SIP addresses."""
    media_url: str = ""
    """Our address as FreeSWITCH reaches it, e.g. `ws://talkspurt:8080`, for streams that we start. Empty:
    `server.public_url`."""


class FreeSwitchConfig(CarrierSection):
    """FreeSWITCH with mod_audio_stream."""

    token: SecretStr | None = Field(None, min_length=1)
    """Token that media sockets have to bring as `Authorization: Bearer` (`STREAM_EXTRA_HEADERS`)."""
    sample_rate: Annotated[Literal[8000, 16000, 24000, 32000, 48000], NUMBER] = 8000
    """Sample rate of the start command, hertz, unless the address says `?rate=`."""
    playback: Literal["binary", "file"] = "binary"
    """How audio goes back: `rawAudio` with binary messages (commercial edition), or `streamAudio` files (community
    edition), which `esl` plays one behind the other; without `esl` an application of yours has to. With files let
    `sample_rate` be the rate of the calls' codec."""
    clear_message: str = ""
    """Text message that empties the module's queue, if the module knows one. Empty: after a cut our voice is heard some
    60 ms longer."""
    esl: EslConfig | None = None
    """The switch's event socket. Without it only the dialplan can end or transfer calls."""
