"""Touch tones inside the audio of a SIP call, from RTP packets to the dialogue."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.http.call_api.test_place_call import SIP
from tests.sip_bridge.phone import Phone, offer
from tests.waiting import PATIENCE_S, until
from voicecodecs.dtmf import tones
from voicecodecs.g711 import encode_ulaw
from voicecodecs.pcm import to_int16


@pytest.mark.parametrize(("inband", "by_event", "digits"), [(True, "", "159#"), (False, "", ""), (True, "7", "7")])
async def test_keys_in_the_audio_are_told_where_asked_for_and_only_if_no_others_are(
    inband: bool, by_event: str, digits: str, tmp_path: Path
) -> None:
    silence = np.zeros(8000, np.float32)
    pcm = np.concatenate((silence[:1600], tones("159#", 8000, tone_ms=100, pause_ms=100), silence))
    payloads = [encode_ulaw(to_int16(pcm[at : at + 160])) for at in range(0, len(pcm) - 159, 160)]
    routes = {"default": {"inband_dtmf": inband}}
    async with api_gateway(tmp_path, sip=SIP, routes=routes) as (made, _, _):
        assert made.sip is not None
        with Phone(made.sip.endpoint.port) as phone:
            await phone.call(body=offer(phone.rtp_port, codecs="0 101"))
            told = ""
            async with made.dialogue.observers.subscribe("") as events:

                async def listen() -> None:
                    nonlocal told
                    async for event in events:
                        if '"ended"' in event:
                            return
                        if '"dtmf"' in event:
                            told += event.partition('"digit":"')[2][0]

                listening = asyncio.create_task(listen())
                await asyncio.sleep(0)
                for digit in by_event:
                    phone.speak(bytes([int(digit), 10, 0, 160]), payload_type=101, timestamp=10, sequence=1)
                for n, payload in enumerate(payloads, 2):
                    phone.speak(payload, sequence=n, timestamp=160 * n)
                    if n % 10 == 0:
                        await asyncio.sleep(0.02)
                await until(lambda: len(told) >= len(digits), "digits")
                await phone.bye()
                await asyncio.wait_for(listening, PATIENCE_S)
            assert told == digits
