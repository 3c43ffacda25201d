"""The codecs of Telnyx in both directions, judged by the sound at each end."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from tests.peers.live_server import Live, serve
from tests.waiting import PATIENCE_S, until
from voicecodecs.registry import AudioFormat, decoder, encoder

CODECS = {
    "PCMA": (AudioFormat("PCMA"), AudioFormat("PCMA")),
    "G722": (AudioFormat("G722", 16000), AudioFormat("G722", 16000)),
    "OPUS": (AudioFormat("OPUS", 48000), AudioFormat("OPUS", 16000)),
    "L16": (AudioFormat("PCMU"), AudioFormat("L16", 8000)),
}
"""Name of the setting -> formats of the caller's audio and of our audio."""
TONE_HZ = 1000.0


def strongest_hz(pcm: NDArray[np.int16], rate: int) -> float:
    """Return the frequency of the strongest bin of audio."""
    spectrum = np.abs(np.fft.rfft(pcm.astype(np.float64) * np.hanning(len(pcm))))
    return float(np.argmax(spectrum)) * rate / len(pcm)


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def live(codec: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    text = f"engine: {{kind: tone}}\ncarriers: {{telnyx: {{verify: false, codec: {codec}}}}}\n"
    async with serve(tmp_path_factory.mktemp("telnyx"), text) as running:
        yield running


async def test_a_codec_carries_sound_both_ways(live: Live, codec: str) -> None:
    inbound, outbound = CODECS[codec]
    calls: list[ManagedCall] = []
    manager = SimulatedManager(calls.append)
    await manager.dial_in(f"{live.ws}/v1/dialogue?route=default")
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{live.ws}/media/telnyx/default") as ws:
        media_format = {"encoding": inbound.encoding, "sample_rate": inbound.sample_rate, "channels": 1}
        start = {"call_control_id": "v3:x", "media_format": media_format}
        await ws.send_str(json.dumps({"event": "start", "stream_id": "s", "start": start}))
        await until(lambda: calls)
        heard = bytearray()
        calls[0].on_audio = heard.extend
        calls[0].send("subscribe", media=True, sampleRate=8000)
        calls[0].speak("One two three four five six.")
        message = await ws.receive_json(timeout=PATIENCE_S)
        played: list[NDArray[np.int16]] = []
        decode = decoder(outbound)
        while sum(map(len, played)) < outbound.sample_rate // 2:
            if message["event"] == "media":
                played.append(decode.decode(base64.b64decode(message["media"]["payload"])))
            message = await ws.receive_json(timeout=PATIENCE_S)
        assert float(np.abs(np.concatenate(played).astype(np.float64)).max()) > 1000, "our voice is heard"

        encode, samples = encoder(inbound), inbound.frame_samples
        tone = 8000 * np.sin(2 * np.pi * TONE_HZ * np.arange(samples * 100) / inbound.sample_rate)
        for number in range(100):
            frame = tone[number * samples : (number + 1) * samples].astype(np.int16)
            media = {
                "track": "inbound",
                "chunk": str(number + 1),
                "payload": base64.b64encode(encode.encode(frame)).decode(),
            }
            await ws.send_str(json.dumps({"event": "media", "stream_id": "s", "media": media}))
        await until(lambda: len(heard) >= 2 * 8000)
        caller = np.frombuffer(bytes(heard[-8000:]), np.int16)
        assert abs(strongest_hz(caller, 8000) - TONE_HZ) < 10, "the caller is heard"
    await manager.aclose()
