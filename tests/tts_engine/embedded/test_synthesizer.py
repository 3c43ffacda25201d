"""The real embedded voice: intelligible, exact word times, a seam that cannot be heard, the urgent first."""

import asyncio
import itertools
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from hibari import Hibari, dsp

from tests.peers.ears import understood, words_until_end
from tests.tts_engine.garbage import leaving_no_circles
from tts_engine.api import AudioChunk, UtteranceRequest
from tts_engine.config import EmbeddedConfig
from tts_engine.embedded.hibari import HibariVoice, Waveform, band
from tts_engine.embedded.hibari_text import PhonemeReader
from tts_engine.embedded.synthesizer import FIRST_BLOCK_MS, EmbeddedSynthesizer
from tts_engine.errors import InvalidRequest, NotFound, SynthesisFailed
from tts_engine.pipeline.engine import Engine
from tts_engine.pipeline.settings import SpeechConfig
from tts_engine.synthesizer import ClauseRequest, PcmChunk, Playhead, WordSpan
from voicecodecs.pcm import dbov, to_float32
from voicecodecs.registry import AudioFormat, decoder
from voicecodecs.resample import Resampler, resample

pytestmark = pytest.mark.asyncio(loop_scope="module")

L16 = AudioFormat("L16", 16000)
TEXT = "Thanks for calling, how can I help? Your order of $1,234.50 was shipped on March 5 at 7:30 pm."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def voice() -> AsyncIterator[EmbeddedSynthesizer]:
    synthesizer = EmbeddedSynthesizer(EmbeddedConfig(seed=1))
    await synthesizer.start()
    yield synthesizer
    await synthesizer.aclose()


async def speak(voice: EmbeddedSynthesizer, text: str, /, **fields: Any) -> list[AudioChunk]:
    engine = Engine(voice, SpeechConfig(cache_bytes=0))
    request = UtteranceRequest(**{"utterance_id": "u", "format": L16} | fields)  # type: ignore[arg-type]
    async with engine.open(request) as utterance:
        utterance.feed(text)
        utterance.end_text()
        return [chunk async for chunk in utterance]


@pytest.mark.parametrize("end", ["spoken", "cancelled", "failed"])
async def test_an_utterance_leaves_nothing_to_a_collection_of_garbage(
    voice: EmbeddedSynthesizer, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(voice, SpeechConfig(cache_bytes=0))
    if end == "failed":

        def broken(*args: object, **more: object) -> object:
            raise ZeroDivisionError

        monkeypatch.setattr(PhonemeReader, "read", broken)
    async with leaving_no_circles():
        for number in range(3):
            async with engine.open(UtteranceRequest(utterance_id=f"u{number}", format=L16)) as utterance:
                utterance.feed(f"{TEXT} That was number {number}.")
                utterance.end_text()
                with suppress(SynthesisFailed):
                    async for _ in utterance:
                        if end == "cancelled":
                            break


def pcm(chunks: Sequence[AudioChunk]) -> np.ndarray:
    return np.frombuffer(b"".join(f for c in chunks for f in c.frames), "<i2").astype(np.float32) / 32768


@pytest.fixture(scope="module")
def transcriber():
    from moonshine_voice import ModelArch, Transcriber, get_model_path

    transcriber = Transcriber(str(get_model_path("tiny-en")), ModelArch.TINY)
    yield transcriber
    transcriber.close()


def transcribe(transcriber, sound: np.ndarray) -> str:
    """Return the words heard in 16 kHz samples, lower case."""
    lines = transcriber.transcribe_without_streaming(sound.tolist(), 16000).lines
    return " ".join(line.text for line in lines).lower()


async def over_the_telephone(voice, text: str) -> np.ndarray:
    line = AudioFormat("PCMU")
    decode, up = decoder(line).decode, Resampler(8000, 16000)
    payloads = [frame for chunk in await speak(voice, text, format=line) for frame in chunk.frames]
    return np.concatenate((up.process(to_float32(np.concatenate([decode(p) for p in payloads]))), up.flush()))


SPOKEN = [
    "Your parcel was shipped on Friday and will arrive by Monday morning.",
    "Please hold the line while I connect you to our office.",
    "I am sorry, but we are closed until the end of the week.",
    "Would you like to speak with a person about your invoice?",
]


async def test_a_recogniser_understands_it_over_a_telephone_line(voice, transcriber) -> None:
    wrong = total = 0
    for text in SPOKEN:
        heard = re.findall(r"[a-z]+", transcribe(transcriber, await over_the_telephone(voice, text)))
        words = re.findall(r"[a-z]+", text.lower())
        wrong += len(words) - sum(block.size for block in SequenceMatcher(None, words, heard).get_matching_blocks())
        total += len(words)
    assert wrong <= 0.05 * total


@pytest.mark.parametrize("speed", [0.25, 0.5, 1.5, 2.0])
async def test_a_recogniser_understands_it_at_other_speeds(voice, transcriber, speed: float) -> None:
    heard = transcribe(transcriber, pcm(await speak(voice, SPOKEN[3], speed=speed)))
    assert understood("speak with a person about your invoice", heard), heard


@pytest.mark.parametrize(("own", "stretched"), [(0.5, 0.25), (2.0, 4.0)])
async def test_beyond_the_range_of_the_network_sound_and_words_are_stretched(voice, own, stretched) -> None:
    chunks, asked = [await speak(voice, SPOKEN[1], speed=speed) for speed in (own, stretched)]
    before, after = ([s.first_sample for c in each for s in c.spans] for each in (chunks, asked))
    assert len(after) == len(SPOKEN[1].split())
    ratio = own / stretched
    assert np.allclose(np.diff(after), np.diff(before) * ratio, atol=0.01 * 16000 * max(ratio, 1))  # trimmed by 5 ms
    assert len(pcm(asked)) == pytest.approx(len(pcm(chunks)) * ratio, rel=0.02)


async def test_slow_sound_cut_at_the_end_of_a_span_says_the_words_up_to_there(voice, transcriber) -> None:
    chunks = await speak(voice, SPOKEN[0], speed=0.3)
    (span,) = (s for c in chunks for s in c.spans if SPOKEN[0][s.start_char : s.end_char] == "Friday")
    heard = transcribe(transcriber, pcm(chunks)[: span.end_sample])
    assert abs(words_until_end(SPOKEN[0], heard) - 6) <= 1


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        ("It costs $1,234.50 in all, and not a cent more than that.", r"(\$1,?234|one thousand two hundred)"),
        ("The meeting is on March 5 at 7:30 in the evening.", r"march (5th|fifth) at (7.30|seven thirty)"),
        ("Ask for Dr. Smith of Acme Inc. on the second floor.", r"(dr\.?|doctor) smith"),
    ],
)
async def test_numbers_dates_and_titles_are_read_as_people_say_them(voice, transcriber, text: str, heard: str) -> None:
    assert re.search(heard, transcribe(transcriber, await over_the_telephone(voice, text)))


async def test_sound_cut_at_the_end_of_a_span_says_the_words_up_to_there(voice, transcriber) -> None:
    text = SPOKEN[0]
    chunks = await speak(voice, text)
    sound = pcm(chunks)
    for cut, last in (("shipped", "shipped"), ("Friday", "friday"), ("arrive", "arrive")):
        (span,) = (s for c in chunks for s in c.spans if text[s.start_char : s.end_char] == cut)
        assert transcribe(transcriber, sound[: span.end_sample]).rstrip(".,").endswith(last)
        assert last not in transcribe(transcriber, sound[: span.first_sample])


async def test_spans_name_the_callers_own_characters_for_what_is_read_otherwise(voice) -> None:
    text = "On 3/4/2025 we  paid **Dr. Ng** $5 million (12%) at 7:30 pm 👍, e.g. for www.example.com!"
    chunks = await speak(voice, text)
    spans = [s for c in chunks for s in c.spans]
    said = [text[s.start_char : s.end_char] for s in spans]
    assert [w for w in said if w in ("3/4/2025", "paid", "$5", "million", "at", "7:30 pm", "7:30", "for")]
    assert all(a.end_char <= b.start_char and a.first_sample <= b.first_sample for a, b in itertools.pairwise(spans))


async def test_first_sound_is_audible_at_once(voice) -> None:
    first = (await speak(voice, "Please hold the line."))[0]
    assert max(dbov(pcm([first])[i : i + 320]) for i in (0, 320)) > -50


async def test_blocks_give_the_waveform_of_the_library() -> None:
    class Silence(np.random.Generator):
        def standard_normal(self, size, dtype):
            return np.zeros(size, dtype)

    library = Hibari()
    ids = library.ids(library.phonemize("Your order has been shipped today.")[0])
    spectrum = [p[0] for p in library.sess.run(None, {"ids": np.asarray([ids]), "speed": np.ones(1, np.float32)})]
    wave = Waveform(spectrum[5], 0, lambda bins, frames: np.zeros((bins, frames), np.complex64), band(24000))
    frames = spectrum[0].shape[1]
    edges = [0, 7, 39, 40, 90, frames]
    blocks = [wave.block(*(p[:, a:b] for p in spectrum[:5])) for a, b in itertools.pairwise(edges)]
    np.testing.assert_allclose(np.concatenate(blocks), dsp.synth(*spectrum, Silence(np.random.PCG64(0))), atol=1e-6)


@pytest.fixture(scope="module")
def network() -> HibariVoice:
    return HibariVoice()


class OneNoise:
    """The same noise in every bin and frame, however many bins are asked for."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0).standard_normal((601, 1000, 2), dtype=np.float32)
        self._all = draw.view(np.complex64)[..., 0]
        self._next = 0

    def __call__(self, bins: int, frames: int) -> np.ndarray:
        self._next += frames
        return self._all[:bins, self._next - frames : self._next]


@pytest.mark.parametrize("rate", [8000, 16000])
async def test_a_narrow_line_gets_the_lower_part_of_the_same_sound(network, rate: int) -> None:
    (piece,) = PhonemeReader().read("She sells sea shells to six zealous customers.")

    def speech(sample_rate: int) -> tuple[np.ndarray, list[WordSpan]]:
        made = network.begin(piece, 1.0, OneNoise(), sample_rate)
        blocks = []
        while not made.finished:
            blocks.append(made.block(40))
        return np.concatenate(blocks), made.words

    (whole, whole_words), (narrow, words) = speech(24000), speech(rate)
    assert [24000 * w.first_sample for w in words] == [rate * w.first_sample for w in whole_words]
    lower = resample(whole, 24000, rate)
    assert len(narrow) == len(lower)
    hz = np.fft.rfftfreq(len(lower), 1 / rate)
    wanted, got = np.fft.rfft(lower), np.fft.rfft(narrow)
    for low, high in ((60, 1000), (1000, 0.25 * rate), (0.25 * rate, 0.425 * rate)):
        part = (hz >= low) & (hz < high)
        error_db = 10 * np.log10(np.sum(np.abs(got - wanted)[part] ** 2) / np.sum(np.abs(wanted[part]) ** 2))
        assert error_db < -30


async def test_every_line_hears_the_same_speech_at_the_same_time(voice) -> None:
    # remembered between them: what was made for one line must not be played on another
    engine = Engine(voice)
    heard = {}
    for fmt in (AudioFormat("L16", 24000), AudioFormat("PCMU"), AudioFormat("G722", 16000), AudioFormat("PCMA")):
        async with engine.open(UtteranceRequest(utterance_id="u", format=fmt)) as utterance:
            utterance.feed(SPOKEN[0])
            utterance.end_text()
            chunks = [chunk async for chunk in utterance]
        seconds = sum(chunk.samples for chunk in chunks) / fmt.sample_rate
        heard[fmt] = [seconds, *(s.first_sample / fmt.sample_rate for c in chunks for s in c.spans)]
    first, *others = heard.values()
    for other in others:
        assert other == pytest.approx(first, abs=0.045)


@pytest.mark.parametrize(
    ("text", "script"),
    [("你好，世界", "Han"), ("Привет", "Cyrillic"), ("Call 王 now", "Han"), ("안녕하세요", "Hangul")],
)
async def test_a_script_it_cannot_speak_is_an_error_that_names_it(voice, text: str, script: str) -> None:
    with pytest.raises(InvalidRequest, match=script):
        await speak(voice, text)


async def test_another_language_or_voice_is_refused_by_name(voice) -> None:
    with pytest.raises(InvalidRequest, match="de-DE"):
        await speak(voice, "Hallo.", language="de-DE")
    with pytest.raises(NotFound, match="emma"):
        await speak(voice, "Hello.", voice="emma")


async def test_emoji_control_characters_and_accents_do_not_disturb(voice) -> None:
    chunks = await speak(voice, "Hi \x07\x00there 👍🏽 café, naïve? ½ µm ﬁne １２")
    assert len(pcm(chunks)) > 16000


async def test_a_very_long_clause_is_spoken_whole(voice) -> None:
    text = " ".join(["99,999,999"] * 12)
    spans = [s for c in await speak(voice, text) for s in c.spans]
    assert len({span.start_char for span in spans}) == 12
    assert len(max((p.ids for p in PhonemeReader().read(text)), key=len)) <= 402


async def test_the_first_sound_of_all_comes_before_the_second_of_any() -> None:
    synthesizer = EmbeddedSynthesizer(EmbeddedConfig(seed=1, threads=1))
    await synthesizer.start()
    order: list[str] = []

    async def first_of(call: str, text: str) -> None:
        clause = ClauseRequest(text=text, voice="", language="", speed=1.0, instruct="", first=True)
        async with aclosing(synthesizer.synthesize(clause, Playhead())) as chunks:
            await anext(chunks)
        order.append(call)

    async def second_of(speaking: AsyncGenerator[PcmChunk, None]) -> None:
        await anext(speaking)
        order.append("second")

    text = "This is a sentence that runs on for quite a while, until no one listens."
    clause = ClauseRequest(text=text, voice="", language="", speed=1.0, instruct="", first=True)
    playhead = Playhead()
    try:
        async with aclosing(synthesizer.synthesize(clause, playhead)) as speaking:
            await anext(speaking)
            # an hour in hand, however long this machine takes for all the first blocks
            playhead.delivered_s, playhead.played_at = 3600.0, asyncio.get_running_loop().time()
            # what holds the one thread while all others queue up, and the second step before the first ones
            holding = first_of("holding", " ".join(["99,999,999"] * 12))
            firsts = [first_of(f"first {number}", text) for number in range(12)]
            await asyncio.gather(holding, second_of(speaking), *firsts)
    finally:
        await synthesizer.aclose()
    assert len(order) == 14
    assert order[-1] == "second"


async def test_blocks_stay_short_while_others_have_no_sound_yet() -> None:
    text = "This is a sentence that runs on and on for quite a while, until no one listens any more."
    clause = ClauseRequest(text=text, voice="", language="", speed=1.0, instruct="", first=True)
    config = EmbeddedConfig(seed=1, threads=1)
    synthesizer = EmbeddedSynthesizer(config)
    await synthesizer.start()
    try:
        alone = [len(chunk.pcm) / synthesizer.sample_rate async for chunk in synthesizer.synthesize(clause, Playhead())]
        playhead = Playhead()
        speaking = synthesizer.synthesize(clause, playhead)
        beside = [len((await anext(speaking)).pcm) / synthesizer.sample_rate]
        playhead.delivered_s, playhead.played_at = beside[0], 0.0  # dry, so that it goes first
        others = [asyncio.ensure_future(anext(synthesizer.synthesize(clause, Playhead()))) for _ in range(10)]
        while not synthesizer.status().queued:  # behind the one that the only thread has begun
            await asyncio.sleep(0)
        beside += [len((await anext(speaking)).pcm) / synthesizer.sample_rate]
        await asyncio.gather(*others)
        beside += [len(chunk.pcm) / synthesizer.sample_rate async for chunk in speaking]
    finally:
        await synthesizer.aclose()
    first_s = FIRST_BLOCK_MS / 1000
    assert alone[1] > 3 * first_s
    assert beside[1] <= first_s < beside[2]
    assert sum(beside) == pytest.approx(sum(alone))


async def test_a_first_block_lasts_until_all_that_wait_have_theirs(voice) -> None:
    text = "This is a sentence that runs on for quite a while, until no one listens."
    clause = ClauseRequest(text=text, voice="", language="", speed=1.0, instruct="", first=True)
    firsts = [
        len(f.pcm) for f in await asyncio.gather(*(anext(voice.synthesize(clause, Playhead())) for _ in range(50)))
    ]
    assert max(firsts) > 1.2 * firsts[-1]
    assert min(firsts) == firsts[-1]


async def test_cancel_takes_a_waiting_clause_back(voice) -> None:
    clause = ClauseRequest(text="Hello there.", voice="", language="", speed=1.0, instruct="", first=True)
    tasks = [asyncio.ensure_future(anext(voice.synthesize(clause, Playhead()))) for _ in range(50)]
    await asyncio.sleep(0)
    assert voice.status().queued > 40
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert voice.status().queued == voice.status().active == 0
    assert sum(not isinstance(result, asyncio.CancelledError) for result in results) <= 2


async def test_a_hundred_callers_of_one_greeting_take_one_place_and_one_synthesis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tts_engine.embedded.synthesizer.QUEUE_CLAUSES", 4)
    synthesizer = EmbeddedSynthesizer(EmbeddedConfig())
    asked = []

    async def speak(engine: Engine, number: int) -> bytes:
        async with engine.open(UtteranceRequest(utterance_id=str(number))) as utterance:
            utterance.feed("Welcome to the harbour office, how can we help you?")
            utterance.end_text()
            return b"".join([frame async for chunk in utterance for frame in chunk.frames])

    made = synthesizer.synthesize
    synthesizer.synthesize = lambda clause, hearing: asked.append(clause.text) or made(clause, hearing)  # type: ignore
    engine = Engine(synthesizer)
    await engine.start()
    try:
        del asked[:]
        calls = await asyncio.gather(*(speak(engine, number) for number in range(100)))
        assert len(asked) == len(set(asked)) > 0
        assert len(set(calls)) == 1 and len(calls[0]) > 8000
    finally:
        await engine.aclose()
