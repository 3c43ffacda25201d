"""A turn whose engine refuses it or dies continues at another one, at the last word that was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tts_engine.api import AudioChunk, TextSpan, Utterance
from tts_engine.errors import EngineError, Exhausted, InvalidRequest, Unavailable
from tts_engine.service.moving import MovingUtterance, next_char

TEXT = "one two three four."
WORD = 320
"""Samples of a word."""
FULL, GONE = Exhausted("full", retry_after_s=1.0), Unavailable("gone")


class Script:
    """An utterance that speaks ``words`` of its text in one chunk each, the last of them to its half if ``half``, and
    ends with ``error``."""

    def __init__(self, error: EngineError | None = None, *, words: int = 99, half: bool = False) -> None:
        self.error, self.words, self.half = error, words, half
        self.text = ""
        self.ended = asyncio.Event()
        self.heard: list[int] = []
        self.closed = False
        self._chunks = self._speak()

    def feed(self, text: str) -> None:
        self.text += text

    def end_text(self) -> None:
        self.ended.set()

    def played(self, samples: int, *, at: float) -> None:
        self.heard.append(samples)

    def __aiter__(self) -> Script:
        return self

    async def __anext__(self) -> AudioChunk:
        return await anext(self._chunks)

    async def _speak(self):  # type: ignore[no-untyped-def]
        if self.words:
            await self.ended.wait()
        begin = sample = 0
        for number, word in enumerate(self.text.split()[: self.words], start=1):
            begin = self.text.index(word, begin)
            end = begin + len(word)
            made = WORD // 2 if self.half and number == self.words else WORD
            span = TextSpan(begin, end, sample, sample + WORD)
            yield AudioChunk(
                frames=[word.encode()], first_sample=sample, samples=made, spans=[span], clause_end_char=end
            )
            begin, sample = end, sample + made
        if self.error is not None:
            raise self.error

    async def aclose(self) -> None:
        self.closed = True

    async def __aenter__(self) -> Script:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Heard:
    """The speech of a text that several engines speak."""

    def __init__(self, *engines: Script) -> None:
        self.left: list[Utterance] = list(engines[1:])
        self.moves = 0
        self.utterance = MovingUtterance(engines[0], self._reopen, moved=self._moved)
        self.chunks: list[AudioChunk] = []
        self.error: EngineError | None = None

    def _reopen(self, goes_on: bool) -> Utterance | None:
        assert goes_on == bool(self.chunks)
        return self.left.pop(0) if self.left else None

    def _moved(self) -> None:
        self.moves += 1

    async def listen(self) -> Heard:
        self.utterance.feed(TEXT[:7])
        self.utterance.feed(TEXT[7:])
        self.utterance.end_text()
        try:
            async for chunk in self.utterance:
                self.chunks.append(chunk)
        except EngineError as error:
            self.error = error
        return self

    @property
    def words(self) -> list[str]:
        return [chunk.frames[0].decode() for chunk in self.chunks]

    @property
    def spans(self) -> list[tuple[str, int]]:
        return [(TEXT[span.start_char : span.end_char], span.first_sample) for c in self.chunks for span in c.spans]


def in_a_row(chunks: Sequence[AudioChunk]) -> bool:
    """Do the chunks follow each other without a hole?"""
    ends = [0, *(chunk.first_sample + chunk.samples for chunk in chunks)]
    return all(chunk.first_sample == end for chunk, end in zip(chunks, ends, strict=False))


@pytest.mark.parametrize("refusals", [[FULL], [GONE], [FULL, FULL, GONE]])
async def test_a_refused_turn_is_spoken_whole_by_the_next_engine(refusals: list[EngineError]) -> None:
    engines = [*(Script(error, words=0) for error in refusals), Script()]
    heard = await Heard(*engines).listen()
    assert heard.words == TEXT.split()
    assert heard.error is None
    assert heard.moves == 0, "nothing had been heard"
    assert all(engine.closed for engine in engines[:-1])


async def test_a_turn_goes_on_behind_the_last_whole_word() -> None:
    heard = await Heard(Script(GONE, words=2), second := Script()).listen()
    assert second.text == " three four."
    assert heard.words == TEXT.split()
    assert heard.spans == [("one", 0), ("two", WORD), ("three", 2 * WORD), ("four.", 3 * WORD)]
    assert in_a_row(heard.chunks)
    assert heard.moves == 1


async def test_half_a_word_is_said_again() -> None:
    heard = await Heard(Script(GONE, words=2, half=True), Script()).listen()
    assert heard.words == ["one", "two", "two", "three", "four."]
    assert heard.spans[2] == ("two", WORD + WORD // 2)
    assert in_a_row(heard.chunks)


async def test_positions_count_from_where_the_next_engine_began() -> None:
    first, second = Script(GONE, words=2), Script()
    heard = await Heard(first, second).listen()
    for samples in (WORD, 2 * WORD, 3 * WORD):
        heard.utterance.played(samples, at=1.0)
    assert second.heard == [0, 0, WORD]


async def test_a_text_that_kills_two_engines_kills_no_third() -> None:
    heard = await Heard(Script(GONE, words=1), Script(GONE, words=1), third := Script()).listen()
    assert heard.words == ["one", "two"]
    assert heard.error is GONE
    assert not third.text


@pytest.mark.parametrize("error", [InvalidRequest("no such speed"), FULL])
async def test_what_no_engine_can_help_is_passed_on(error: EngineError) -> None:
    heard = await Heard(Script(error, words=0), *[Script(FULL, words=0)] * (error is FULL)).listen()
    assert heard.error is error


async def test_text_that_comes_after_the_move_is_spoken() -> None:
    first, second = Script(GONE, words=0), Script()
    utterance = MovingUtterance(first, [second].pop, moved=lambda: None)
    utterance.feed("one ")
    listening = asyncio.ensure_future(anext(utterance))
    while not second.text:
        await asyncio.sleep(0)
    utterance.feed("two")
    utterance.end_text()
    assert (await listening).frames == [b"one"]
    assert (await anext(utterance)).frames == [b"two"]


async def test_the_first_sound_tells_the_time_that_was_lost_elsewhere() -> None:
    now = 10.0
    second = Script()
    utterance = MovingUtterance(Script(FULL, words=0), [second].pop, moved=lambda: None, clock=lambda: now)
    utterance.feed("one")
    now = 10.5
    utterance.feed(" two")
    utterance.end_text()
    now = 10.75
    chunks = [chunk async for chunk in utterance]
    assert [chunk.stages_ms for chunk in chunks] == [{"moved": 750.0}, {}], "the first word is a clause of its own"


def test_the_next_character() -> None:
    spans = [TextSpan(0, 3, 0, 100), TextSpan(4, 7, 100, 200)]
    assert [next_char(spans, samples) for samples in (0, 99, 100, 199, 200)] == [0, 0, 4, 4, 7]
    assert next_char([], 50) == 0
    assert next_char([spans[0]._replace(end_sample=0)], 0) == 3
