"""A model on trial, from the request that begins it to the calls that it speaks for: real calls over real sockets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from tests.gateway.http.api_gateway import api_gateway
from tests.peers.live_server import TestCall
from tts_engine.synthesizer import ClauseRequest, Hearing, PcmChunk
from tts_engine.tone import ToneSynthesizer

SECTIONS: dict[str, Any] = {"routes": {"bot": {}}, "carriers": {"twilio": {"verify": False}}}


class Broken(ToneSynthesizer):
    """Fails every clause."""

    async def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        raise RuntimeError("no sound")
        yield


@pytest.mark.parametrize(
    ("model", "state", "turns"), [(ToneSynthesizer(), "running", 5), (Broken(), "errors", 3)], ids=["works", "fails"]
)
async def test_calls_of_the_share_are_spoken_by_the_model_on_trial_until_it_fails(
    tmp_path: Path, model: ToneSynthesizer, state: str, turns: int
) -> None:
    async with (
        api_gateway(tmp_path, clones=False, **SECTIONS) as (made, engine, url),
        aiohttp.ClientSession(url) as http,
    ):
        engine.models = {**engine.models, "next": model}
        live: Any = SimpleNamespace(ws=url.replace("http", "ws"))
        async with TestCall(live, "bot") as before:
            body = {"model": "next", "percent": 100, "min_turns": 40, "max_gap_ratio": 10}
            async with http.put("/v1/trial", json=body) as answer:
                assert answer.status == 200, await answer.text()
            assert (await before.spoken("Hi.")).outcome == "finished"
        async with TestCall(live, "bot", number=2) as call:
            for _ in range(5):
                assert (await call.spoken("Hi.")).outcome == "finished"
        async with http.get("/v1/trial") as answer:
            trial = await answer.json()
        assert (trial["state"], trial["calls"], trial["turns"]) == (state, 1, turns)
        async with http.delete("/v1/models/next") as answer:
            code = (await answer.json())["error"]["code"]
            assert code == ("model_on_trial" if state == "running" else "invalid_value")
        exposed = (await made.http.exposition()).decode()
        assert f'talkspurt_model_turns_total{{model="next"}} {float(turns)}' in exposed
        assert ('engine="next",transport="twilio"' in exposed) == (state == "running")
        async with http.delete("/v1/trial") as answer:
            assert (await answer.json())["state"] == ("stopped" if state == "running" else state)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "gone", "percent": 5}, 404, "model"),
        ({"model": "tone", "percent": 5}, 409, "model"),
        ({"model": "next", "percent": 101}, 422, "percent"),
        ({"model": "next", "share": 1}, 422, "share"),
    ],
)
async def test_a_trial_that_cannot_be_is_refused(tmp_path: Path, body: dict[str, Any], status: int, param: str) -> None:
    async with api_gateway(tmp_path, **SECTIONS) as (_, engine, url), aiohttp.ClientSession(url) as http:
        engine.models = {**engine.models, "next": ToneSynthesizer()}
        async with http.put("/v1/trial", json=body) as answer:
            assert (answer.status, (await answer.json())["error"]["param"]) == (status, param)
        async with http.get("/v1/trial") as answer:
            assert (await answer.json())["state"] == "none"
