"""Refusals that meet writes under way, between two processes: in one they take turns, and never meet.

``write`` of grpc.aio makes INTERNAL of such a refusal, without details or metadata.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.tts_engine.service.scripted import RETRY_AFTER_S
from tests.waiting import PATIENCE_S
from tts_engine.api import Utterance, UtteranceRequest
from tts_engine.config import EngineConfig
from tts_engine.errors import EngineError, InvalidRequest
from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb
from tts_engine.service import wire
from tts_engine.service.client import GrpcEngine
from tts_engine.service.process import EngineProcess
from tts_engine.service.server import RETRY_AFTER_S as FULL_RETRY_S

PLACES = 50
PATIENT = {"hang_s": PATIENCE_S}
"""A process that stands still is not replaced by another one, which would be empty."""
CONFIG = EngineConfig.model_validate({"kind": "tone", "speech": {"max_utterances": PLACES}, "timeouts": PATIENT})
ROUNDS, AT_ONCE = 6, 20
ROOM_FOR_ALL = CONFIG.model_copy(
    update={"speech": CONFIG.speech.model_copy(update={"max_utterances": ROUNDS * AT_ONCE})}
)
"""An engine that still holds all earlier rounds is not full. A busy machine learns late that a client has ended."""
MOST_TOKENS = 2_000
LONG = "word " * 50_000
"""More than HTTP/2's window of 64 KiB: writing it lasts until the server reads, or ends the call."""


@asynccontextmanager
async def running(config: EngineConfig, ours: EngineConfig | None = None) -> AsyncIterator[GrpcEngine]:
    """An engine process, and a client of it with a configuration of its own."""
    process = EngineProcess("tests.tts_engine.service.scripted", config)
    await process.start()
    client = GrpcEngine(process.target, ours or config)
    try:
        # A call that finds no connection fails after a second: on a busy machine the first calls of a test would.
        (backend,) = client._backends
        await backend.channel.channel_ready()
        yield client
    finally:
        await client.aclose()
        await process.aclose()


@pytest.fixture
async def engine() -> AsyncIterator[GrpcEngine]:
    async with running(CONFIG) as client:
        yield client


async def refusal(utterance: Utterance) -> tuple[str, float | None]:
    """Return the name of the refusal's error, and the delay before a retry."""
    with pytest.raises(EngineError) as caught:
        await anext(aiter(utterance))
    await utterance.aclose()
    return type(caught.value).__name__, getattr(caught.value, "retry_after_s", None)


@pytest.mark.parametrize("text", ["short", LONG], ids=["short", "long"])
async def test_a_refusal_by_a_full_engine_arrives_as_it_is(engine: GrpcEngine, text: str) -> None:
    held = [engine.open(UtteranceRequest(utterance_id="held")) for _ in range(PLACES)]
    for utterance in held:
        utterance.feed("one hold ")
    for utterance in held:
        await anext(aiter(utterance))

    async def refused() -> tuple[str, float | None]:
        utterance = engine.open(UtteranceRequest(utterance_id="u"))
        utterance.feed(text)
        return await refusal(utterance)

    for _ in range(6):
        seen = Counter(await asyncio.gather(*(refused() for _ in range(PLACES))))
        assert seen == {("Exhausted", FULL_RETRY_S): PLACES}


@pytest.mark.parametrize("told", [True, False], ids=["by a message", "by the status alone"])
async def test_a_refusal_that_meets_a_later_write_arrives_as_it_is(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    def start(request: UtteranceRequest) -> pb.SpeakStart:
        encoded = encode_start(request)
        encoded.failure_wanted = told
        return encoded

    encode_start = wire.encode_start
    monkeypatch.setattr(wire, "encode_start", start)

    async def refused(engine: GrpcEngine) -> tuple[str, float | None]:
        utterance = engine.open(UtteranceRequest(utterance_id="u", voice="full"))
        refusing = asyncio.create_task(refusal(utterance))
        # Tokens, faster than any model's, but no more than a link lets wait: an engine that stands still reads none.
        for _ in range(MOST_TOKENS):
            if refusing.done():
                break
            utterance.feed("token ")
            await asyncio.sleep(0)
        return await refusing

    async with running(ROOM_FOR_ALL) as engine:
        for _ in range(ROUNDS):
            seen = Counter(await asyncio.gather(*(refused(engine) for _ in range(AT_ONCE))))
            assert seen == {("Exhausted", RETRY_AFTER_S): AT_ONCE}


async def test_a_recording_that_is_refused_on_its_way_is_refused_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = wire.MESSAGE_BYTES
    monkeypatch.setattr(wire, "MESSAGE_BYTES", 4 * bound)  # a client of another version; the engine has its own process
    async with running(CONFIG) as engine:
        for _ in range(10):
            with pytest.raises(InvalidRequest, match=f"over {bound} bytes"):
                await engine.add_voice(voice_id="v", name="", wav=bytes(2 * bound), transcript="said", language="de")


async def test_a_burst_that_fits_is_not_thinned_out_by_chance() -> None:
    """gRPC's own limit of calls that the server has not accepted yet refused 672 of 3000."""
    config = EngineConfig.model_validate({"kind": "tone", "speech": {"max_utterances": 3000}, "timeouts": PATIENT})
    async with running(config) as engine:

        async def chunks() -> int:
            async with engine.open(UtteranceRequest(utterance_id="u")) as utterance:
                utterance.feed("two words")
                utterance.end_text()
                return len([chunk async for chunk in utterance])

        assert Counter(await asyncio.gather(*(chunks() for _ in range(3000)))) == {2: 3000}
