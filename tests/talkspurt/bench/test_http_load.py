"""The sound of a listener without a prebuffer, and the counts of its requests; times are numbers."""

from __future__ import annotations

import math

import aiohttp
import numpy as np
from aiohttp import web
from aiohttp.test_utils import TestServer

from talkspurt.bench.http_load import SAMPLE_RATE, HttpLoad, StreamListener
from talkspurt.bench.load import standard_load


def sound(seconds: float, level: int = 8000) -> bytes:
    return np.full(round(seconds * SAMPLE_RATE), level, "<i2").tobytes()


def test_the_first_sound_is_the_first_that_is_audible() -> None:
    listening = StreamListener(asked_at=10.0)
    listening.take(sound(0.1, level=0), 10.02)
    assert math.isnan(listening.first_ms)
    listening.take(sound(0.1, level=50) + sound(0.1), 10.05)
    assert round(listening.first_ms) == 50


def test_sound_that_comes_in_time_makes_no_gap() -> None:
    listening = StreamListener(asked_at=0.0)
    for now in (0.1, 0.15, 0.5, 0.89):  # 0.3 s each
        listening.take(sound(0.3), now)
    assert listening.gaps == [] and listening.samples == round(1.2 * SAMPLE_RATE)


def test_sound_that_comes_after_all_before_it_was_played_is_a_gap_of_that_length() -> None:
    listening = StreamListener(asked_at=0.0)
    listening.take(sound(0.3), 0.1)
    listening.take(sound(0.3), 0.45)  # dry since 0.4
    listening.take(sound(0.3), 0.7)  # now until 0.75: in time
    listening.take(sound(0.3), 1.25)  # dry since 1.05
    assert [round(gap, 3) for gap in listening.gaps] == [0.05, 0.2]


def test_silence_before_the_first_sound_is_not_played() -> None:
    listening = StreamListener(asked_at=0.0)
    listening.take(sound(1.0, level=0) + sound(0.2), 0.1)
    listening.take(sound(0.2), 0.4)
    assert [round(gap, 3) for gap in listening.gaps] == [0.1]


def test_a_sample_may_be_cut_in_two() -> None:
    listening = StreamListener(asked_at=0.0)
    data = sound(0.1)
    listening.take(data[:1001], 0.1)
    listening.take(data[1001:], 0.1)
    assert listening.samples == round(0.1 * SAMPLE_RATE)
    assert listening.gaps == []


async def test_a_request_whose_answer_breaks_off_is_one_request() -> None:
    async def begin(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(sound(0.1))
        assert request.transport is not None
        request.transport.abort()
        return answer

    app = web.Application()
    app.router.add_post("/v1/audio/speech", begin)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        load = HttpLoad(session, f"127.0.0.1:{server.port}", standard_load(1))
        assert not await load.speak("Hello there.")
    figures = load.figures(1.0)
    assert (figures["requests"], figures["statuses"], sum(figures["failed"].values())) == (1, {200: 1}, 1)


async def test_what_requests_were_refused_for_is_counted_without_its_numbers() -> None:
    async def refuse(request: web.Request) -> web.Response:
        message = f"{len(refusals)} clauses take what the device makes in real time"
        refusals.append(message)
        return web.json_response({"error": {"message": message}}, status=429)

    refusals = list[str]()
    app = web.Application()
    app.router.add_post("/v1/audio/speech", refuse)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        load = HttpLoad(session, f"127.0.0.1:{server.port}", standard_load(1))
        assert [await load.speak("Hello there.") for _ in range(2)] == [False, False]
    figures = load.figures(1.0)
    assert (figures["refused"], figures["failed"]) == (2, {})
    assert figures["reasons"] == {"N clauses take what the device makes in real time": 2}
