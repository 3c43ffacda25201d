"""Controls calls of FreeSWITCH with mod_audio_fork over its event socket."""

from __future__ import annotations

from functools import partial

from gateway.carriers.freeswitch.calls import FreeSwitchCalls
from gateway.carriers.freeswitch_fork.settings import FreeSwitchForkConfig
from gateway.carriers.switch import Switch, SwitchTools

_BUG = "talkspurt"
"""Name of our media bug on a channel, as in the sample dialplan; the module finds its stream by it."""


def switch(settings: FreeSwitchForkConfig, tools: SwitchTools) -> Switch | None:
    """Make the switch of the event socket; None if no event socket is configured."""
    if settings.esl is None:
        return None
    both_ways = f"true {str(settings.streaming).lower()} {settings.sample_rate}"
    calls = FreeSwitchCalls(
        settings.esl,
        "uuid_audio_fork",
        sample_rate=settings.sample_rate,
        flush_command="",
        # The last three arguments count only if all ten are given.
        start_options=f"{_BUG} {{}} {both_ways}",
        stop_options=_BUG,
        variables={},
        media_url=partial(tools.media_url, settings.esl.media_url),
    )
    return Switch(attach=calls.attach, open=calls.open, start=calls.esl.start, aclose=calls.esl.aclose)
