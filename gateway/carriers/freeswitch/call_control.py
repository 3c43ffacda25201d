"""Controls calls of FreeSWITCH with mod_audio_stream over its event socket."""

from __future__ import annotations

from functools import partial

from gateway.carriers.freeswitch.calls import FreeSwitchCalls
from gateway.carriers.freeswitch.settings import FreeSwitchConfig
from gateway.carriers.switch import Switch, SwitchTools


def switch(settings: FreeSwitchConfig, tools: SwitchTools) -> Switch | None:
    """Make the switch of the event socket; None if no event socket is configured."""
    if settings.esl is None:
        return None
    files = settings.playback == "file"
    rate = settings.sample_rate
    calls = FreeSwitchCalls(
        settings.esl,
        "uuid_audio_stream",
        sample_rate=rate,
        flush_command="" if files else "uuid_audio_stream {uuid} break",
        start_options="",
        variables={} if files else {"STREAM_PLAYBACK": "true", "STREAM_SAMPLE_RATE": str(rate)},
        files=files,
        media_url=partial(tools.media_url, settings.esl.media_url),
    )
    return Switch(attach=calls.attach, open=calls.open, start=calls.esl.start, aclose=calls.esl.aclose)
