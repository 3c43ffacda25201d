"""Speech over a WebSocket: whole texts, tokens, cancel, and what is refused."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from tests.gateway.http.api_gateway import api_gateway
from tests.gateway.webrtc.webrtc_gateway import strongest_hz
from tests.waiting import PATIENCE_S, until
from tts_engine.tone import tone_hz

LONG = "And on it goes without an end. " * 500


class Client:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse, engine: Any) -> None:
        self.socket = socket
        self.engine = engine

    async def say(self, **message: Any) -> None:
        await self.socket.send_json(message)

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """Messages up to one of that type."""
        messages: list[dict[str, Any]] = []
        while not messages or messages[-1]["type"] != kind:
            messages.append(await self.socket.receive_json(timeout=PATIENCE_S))
        return messages

    async def freed(self) -> None:
        await until(lambda: not self.engine._open)


@asynccontextmanager
async def connected(folder: Path, **sections: Any) -> AsyncIterator[Client]:
    async with (
        api_gateway(folder, **sections) as (_, engine, url),
        aiohttp.ClientSession(url) as http,
        http.ws_connect("/ws/tts", max_msg_size=0) as socket,
    ):
        yield Client(socket, engine)


def pcm_of(messages: list[dict[str, Any]]) -> np.ndarray:
    return np.frombuffer(b"".join(base64.b64decode(m["data"]) for m in messages if m["type"] == "audio_chunk"), "<i2")


async def test_a_text_comes_back_as_pcm_with_its_words(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        for rate in (24000, 16000):
            await client.say(text="Hello there everybody", sample_rate=rate, speaker="tone")
            messages = await client.until("done")
            pcm = pcm_of(messages)
            assert strongest_hz(pcm, rate) == pytest.approx(tone_hz("Hello there everybody"), abs=5)
            assert messages[-1] == {"type": "done", "cancelled": False, "audio_ms": len(pcm) * 1000 // rate}
            words = [word for message in messages[:-1] for word in message["words"]]
            assert [(word["start"], word["end"]) for word in words] == [(0, 5), (6, 11), (12, 21)]
            assert [word["at_ms"] for word in words] == pytest.approx([0, 250, 500], abs=30)
            assert all(word["at_ms"] < word["end_ms"] and word["timing"] == "exact" for word in words)


async def test_speech_begins_before_the_last_token(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        for token in ("This is a first sentence. ", "And here "):
            await client.say(delta=token)
        first = await client.until("audio_chunk")
        assert first[-1]["words"]
        await client.say(delta="is another one.")
        await client.say(end=True)
        messages = first + await client.until("done")
        words = [word for message in messages[:-1] for word in message["words"]]
        assert words[-1]["end"] == len("This is a first sentence. And here is another one.")


async def test_cancel_stops_and_frees_the_engine(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.say(text=LONG)
        await client.until("audio_chunk")
        await client.say(type="cancel")
        assert (await client.until("done"))[-1] == {"type": "done", "cancelled": True}
        await client.freed()
        await client.say(text="Once more.")
        assert (await client.until("done"))[-1]["cancelled"] is False


async def test_a_client_that_vanishes_frees_the_engine(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.say(text=LONG)
        await client.until("audio_chunk")
        transport = client.socket._writer.transport  # gone without a close frame
        assert transport is not None
        transport.abort()
        await client.freed()


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("{", ""),
        ("[]", ""),
        ("{}", "text"),
        ('{"end": true}', "end"),
        ('{"txt": "Hi."}', "txt"),
        ('{"text": 7}', "text"),
        ('{"text": "Hi.", "sample_rate": 11025}', "sample_rate"),
        ('{"text": "Hi.", "speed": 9}', "speed"),
        ('{"text": "Hi.", "speaker": "unknown"}', ""),
        ('{"type": "stop"}', "type"),
        (f'{{"text": "{"x" * 20_001}"}}', "text"),
    ],
    ids=lambda value: value[:40],
)
async def test_bad_messages_are_answered_and_the_socket_stays(tmp_path: Path, message: str, param: str) -> None:
    async with connected(tmp_path) as client:
        await client.socket.send_str(message)
        error = (await client.until("error"))[-1]["error"]
        assert error["param"] == param and error["message"], error
        await client.say(text="Hi.")
        assert (await client.until("done"))[-1]["cancelled"] is False


async def test_a_second_text_has_to_wait_and_ten_errors_in_a_row_close(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.say(text=LONG)
        await client.until("audio_chunk")
        await client.say(text="Me too.")
        assert (await client.until("error"))[-1]["error"]["code"] == "busy"
        await client.say(type="cancel")
        await client.until("done")
        for _ in range(10):
            await client.say()
        async with asyncio.timeout(PATIENCE_S):
            while (await client.socket.receive()).type is not aiohttp.WSMsgType.CLOSE:
                pass
        assert client.socket.close_code == 1007


async def test_text_after_the_end_is_an_error_and_nothing_is_lost(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.say(delta="Hello there everybody, this is one more sentence", speaker="tone")
        await client.say(end=True)
        await client.say(end=True)
        await client.say(delta=" too late")
        messages = await client.until("done")
        errors = [message["error"]["param"] for message in messages if message["type"] == "error"]
        assert errors == ["end", "delta"]
        words = [word for message in messages if message["type"] == "audio_chunk" for word in message["words"]]
        assert len(words) == 8 and not messages[-1]["cancelled"]
        await client.say(text="Next.", speaker="tone")
        assert len(pcm_of(await client.until("done")))


async def test_markup_is_spoken_as_in_a_call_and_words_keep_their_places(tmp_path: Path) -> None:
    text = '<speak>Hello <b>there</b><think>loud</think> <sub alias="my dear friend">mdf</sub></speak>'
    async with connected(tmp_path) as client:
        for at in range(0, len(text), 5):
            await client.say(delta=text[at : at + 5], speaker="tone")
        await client.say(end=True)
        messages = await client.until("done")
        words = [word for message in messages[:-1] for word in message["words"]]
        assert [text[word["start"] : word["end"]] for word in words][:2] == ["Hello", "there"]
        assert len(words) == 5
        assert all("mdf" in text[word["start"] : word["end"]] for word in words[2:])


async def test_marks_of_style_in_tokens_of_any_size(tmp_path: Path) -> None:
    text = 'Hello <break time="1s"/><prosody rate="50%" volume="-6dB">there</prosody>'
    async with connected(tmp_path) as client:
        for size in (1, 7, 200):
            for at in range(0, len(text), size):
                await client.say(delta=text[at : at + size], speaker="tone")
            await client.say(end=True)
            messages = await client.until("done")
            words = [word for message in messages[:-1] for word in message["words"]]
            assert [text[word["start"] : word["end"]] for word in words] == ["Hello", "there"]
            assert words[1]["at_ms"] - words[0]["end_ms"] == pytest.approx(1000, abs=60)
            assert words[1]["end_ms"] - words[1]["at_ms"] == pytest.approx(2 * 250, abs=40)


async def test_half_a_character_in_a_message_costs_nothing(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.socket.send_str('{"delta": "Hello there \\ud83d", "speaker": "tone"}')
        await client.socket.send_str('{"delta": "\\ude00 everybody", "end": true}')
        messages = await client.until("done")
        assert len(pcm_of(messages))
