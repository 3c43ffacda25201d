import pytest

from talkspurt.bench.engine import EngineLoad, UtteranceListener
from talkspurt.bench.load import STANDARD, LoadError, LoadTurn, TurnSupply, read_load
from tests.talkspurt.simulator.toy_gateway import SILENCE, TONE
from tts_engine.pipeline.engine import Engine
from tts_engine.tone import ToneSynthesizer
from voicecodecs.registry import AudioFormat, decoder

PCMU = AudioFormat()


def listener_of(*chunks: tuple[float, list[bytes]]) -> UtteranceListener:
    listener = UtteranceListener(PCMU)
    hear = decoder(PCMU)
    for now, frames in chunks:
        listener.hear(frames, hear, now=now)
    return listener


def test_silence_before_the_first_word_does_not_count_as_sound() -> None:
    listener = listener_of((1.0, [SILENCE] * 3), (2.0, [SILENCE, TONE, TONE]))
    assert listener.started_at == 2.0
    assert listener.audio_s == pytest.approx(0.04)
    assert listener.gaps_s == []


def test_a_chunk_that_comes_too_late_is_a_gap_of_that_length() -> None:
    listener = listener_of((1.0, [TONE] * 10), (1.15, [TONE] * 10), (1.5, [TONE]))
    assert listener.gaps_s == [pytest.approx(0.1)]
    assert listener.left_s(1.5) == pytest.approx(0.02)


async def test_listeners_in_turn_hear_everything_in_real_time() -> None:
    engine = Engine(ToneSynthesizer())
    short = TurnSupply(iter([LoadTurn(("Hello there now.",), 0.0)] * 50), "short")
    load = EngineLoad(engine, short, calls=1, seconds=0.1)
    await load.run()
    await engine.aclose()
    figures = load.figures()
    assert figures["errors"] == 0
    assert figures["gap_free_share"] == 1.0
    assert figures["turns"] >= 1
    # One listener cannot hear more than a second of audio a second.
    assert 0.5 < figures["audio_seconds_per_second"] <= 1.01


async def test_a_starved_listener_hears_a_gap() -> None:
    # 300 ms of sound (after 200 ms of padding), then nothing for a second.
    engine = Engine(ToneSynthesizer(chunk_ms=100, delay_s=lambda chunk: 1.0 if chunk == 5 else 0.0))
    text = LoadTurn(("Inconvenient.",), 0.0)
    load = EngineLoad(engine, TurnSupply(iter([text]), "one"), calls=1, seconds=0.01)
    await load.run()
    await engine.aclose()
    figures = load.figures()
    assert (figures["turns"], figures["gaps"], figures["gap_free_share"]) == (1, 1, 0.0)


async def test_arrivals_do_not_wait_for_each_other_and_cuts_end_early() -> None:
    engine = Engine(ToneSynthesizer())
    load = EngineLoad(engine, read_load(STANDARD), calls=1, seconds=0.4, rate=20.0, cancel_share=1.0)
    await load.run()
    await engine.aclose()
    figures = load.figures()
    assert figures["most_active"] > 1
    assert figures["errors"] == 0
    assert engine.synthesizer.active == 0  # type: ignore[attr-defined]


async def test_an_engine_that_refuses_is_counted_by_its_code() -> None:
    engine = Engine(ToneSynthesizer())
    await engine.aclose()
    load = EngineLoad(engine, read_load(STANDARD), calls=1, seconds=0.05)
    await load.run()
    assert load.figures()["errors_by_kind"] == {"UNAVAILABLE": 1}


async def test_a_load_that_runs_out_says_so() -> None:
    engine = Engine(ToneSynthesizer())
    load = EngineLoad(engine, TurnSupply(iter([]), "empty"), calls=2, seconds=60)
    with pytest.raises(LoadError, match="empty has 0 turns"):
        await load.run()
    await engine.aclose()
