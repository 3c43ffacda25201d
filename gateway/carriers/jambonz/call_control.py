"""jambonz's webhooks, which are answered with verbs."""

from __future__ import annotations

import re
from typing import Any

from gateway.carriers.call_control import Answer, CallControl, NextAction, StreamOrder, json_answer
from gateway.carriers.jambonz.settings import JambonzConfig


def _start(settings: JambonzConfig, stream: StreamOrder) -> Answer:
    rate = settings.sample_rate
    verb: dict[str, Any] = {
        "verb": "listen",
        "url": stream.url,
        "actionHook": stream.after_url,
        "mixType": "mono",
        "sampleRate": rate,
        "passDtmf": True,
        "bidirectionalAudio": {"enabled": True, "streaming": True, "sampleRate": rate},
        "metadata": dict(stream.parameters),
    }
    if settings.password is not None and stream.proven:
        verb["wsAuth"] = {
            "username": settings.username,
            "password": settings.password.get_secret_value(),
        }
    return json_answer([verb])


def _after(following: NextAction) -> Answer:
    if not following.dial:
        return json_answer([{"verb": "hangup"}])
    target = (
        {"type": "sip", "sipUri": following.dial} if following.is_sip else {"type": "phone", "number": following.dial}
    )
    return json_answer([{"verb": "dial", "target": [target]}])


CALL_CONTROL = CallControl(
    start=_start,
    after=_after,
    own_fields=re.compile(
        r"(account|application|call|parent_call|service_provider)_?[sS]id|direction|from|to|call_?[iI]d|sbc_?[cC]allid"
        r"|sip_?([sS]tatus|[rR]eason)|call_?([sS]tatus|er_?[nN]ame|er_?[iI]d|[tT]ermination_?[bB]y)|trace_?[iI]d"
        r"|fs_?(sip_?[aA]ddress|[sS]ip_?[aA]ddress|[pP]ublic_?[iI]p)|originating_?[sS]ip_?([iI]p|[tT]runk_?[nN]ame)"
        r"|api_?[bB]ase_?[uU]rl|(local_?[sS]ip_?[aA]ddress|public_?[iI]p|duration|env_vars|defaults)(\[.*)?|sip(\[.*)?"
    ),
)
