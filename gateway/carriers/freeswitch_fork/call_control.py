"""Calls of a FreeSWITCH with mod_audio_fork, led over its event socket."""

from __future__ import annotations

from functools import partial

from gateway.carriers.freeswitch.calls import FreeSwitchCalls
from gateway.carriers.freeswitch_fork.settings import FreeSwitchForkConfig
from gateway.carriers.switch import Switch, SwitchTools


def switch(settings: FreeSwitchForkConfig, tools: SwitchTools) -> Switch | None:
    """Its event socket, where one is configured."""
    if settings.esl is None:
        return None
    both_ways = f"true {str(settings.streaming).lower()} {settings.sample_rate}"
    calls = FreeSwitchCalls(
        settings.esl,
        "uuid_audio_fork",
        sample_rate=settings.sample_rate,
        flush_command="",
        # The last three count only where all ten arguments are given.
        start_options=f"talkspurt {{}} {both_ways}",
        variables={},
        media_url=partial(tools.media_url, settings.esl.media_url),
    )
    return Switch(attach=calls.attach, open=calls.open, start=calls.esl.start, aclose=calls.esl.aclose)
