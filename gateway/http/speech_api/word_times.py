"""The times at which the words of an utterance are heard, as the speech API shows them. Pure."""

from __future__ import annotations

from gateway.call.turn_taking.speakable import Speakable
from gateway.http.request.routes import ApiModel
from gateway.seams.messages import Timing, timing_of
from tts_engine.api import AudioChunk


class WordTime(ApiModel):
    """A word of a text and its time in the sound."""

    start: int
    """First character of the word in the client's text."""
    end: int
    """Character after the word."""
    at_ms: int
    """Milliseconds of sound before the word."""
    end_ms: int
    """Milliseconds of sound up to the word's end."""
    timing: Timing
    """`estimated`: from the length of the word's clause."""


class TimedSpeech(ApiModel):
    """A file with the times of its words."""

    audio: str
    """The file as Base64."""
    audio_ms: int
    """Length of the sound, milliseconds."""
    words: list[WordTime]


def word_times(chunk: AudioChunk, speakable: Speakable, rate: int) -> list[WordTime]:
    """Return the times of the words that begin in a chunk.

    Args:
        speakable: the text of the utterance, whose tags and entities count as written.
        rate: samples of the chunk per second.
    """
    words: list[WordTime] = []
    for span in chunk.spans:
        start, end = speakable.place(span.start_char, span.end_char)
        at_ms, end_ms = span.first_sample * 1000 // rate, span.end_sample * 1000 // rate
        words.append(WordTime(start=start, end=end, at_ms=at_ms, end_ms=end_ms, timing=timing_of(span.exact)))
    return words
