"""The words that a recogniser hears in a recording, and a search for the phrases that matter.

A recogniser writes "2" for "to", "talk spurt" for "talkspurt", and now and then a wrong letter. So a transcript is not
compared with another: the question is whether a phrase is in it, but for a share of its letters.
"""

from __future__ import annotations

import re
import threading
import wave
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voicecodecs.pcm import to_float32
from voicecodecs.resample import Resampler

_DIGITS = "zero one two three four five six seven eight nine".split()
_WRONG = 0.35
"""The share of letters of a phrase that may be wrong. Of the letters of another sentence, six of ten are."""


_HEARING = threading.Lock()
"""Two transcripts at a time by one network turn out wrong, and may have any bytes in them."""


@cache
def _network() -> object:
    from moonshine_voice import ModelArch, Transcriber, get_model_path

    return Transcriber(str(get_model_path("tiny-en")), ModelArch.TINY)


def transcript(pcm: NDArray[np.float32], rate: int) -> str:
    """Return the recogniser's words for mono audio, full scale 1, ``rate`` in Hz."""
    up = Resampler(rate, 16000)
    sound = np.concatenate((up.process(pcm), up.flush(), np.zeros(8000, np.float32)))
    with _HEARING:
        lines = _network().transcribe_without_streaming(sound.tolist(), 16000).lines  # type: ignore[attr-defined]
        return " ".join(line.text for line in lines)


def transcript_of(recording: Path) -> str:
    """The same of the first channel of a WAV file."""
    with wave.open(str(recording), "rb") as source:
        pcm = np.frombuffer(source.readframes(source.getnframes()), "<i2").reshape(-1, source.getnchannels())
        return transcript(to_float32(np.ascontiguousarray(pcm[:, 0])), source.getframerate())


def understood(phrase: str, heard: str) -> bool:
    """True if the phrase is in the transcript, but for a share of its letters."""
    return times_understood(phrase, heard) > 0


def times_understood(phrase: str, heard: str) -> int:
    """Return the number of times that the phrase is in the transcript."""
    wanted, text = _letters(phrase), _letters(heard)
    times, earliest = 0, 0
    # Sellers, 1980: the phrase may begin and end anywhere in the text.
    for end, edits in enumerate(_edits(wanted, text, [0] * (len(text) + 1))):
        if edits <= _WRONG * len(wanted) and end >= earliest:
            times, earliest = times + 1, end + len(wanted)
    return times


def words_until_end(sentence: str, heard: str) -> int:
    """Up to which word of a sentence a recording goes that was cut: how many of its words fit the transcript best."""
    words, text = sentence.split(), _letters(heard)
    beginnings = (_letters(" ".join(words[:count])) for count in range(len(words) + 1))
    return int(np.argmin([_edits(beginning, text, list(range(len(text) + 1)))[-1] for beginning in beginnings]))


def _letters(text: str) -> str:
    spelt = re.sub(r"\d", lambda digit: _DIGITS[int(digit[0])], text.lower())
    return re.sub(r"[^a-z]", "", spelt)


def _edits(wanted: str, text: str, first: list[int]) -> list[int]:
    """The last row of Levenshtein's table: from ``wanted`` to what ends at each place of the text."""
    row = first
    for count, letter in enumerate(wanted, 1):
        above, row = row, [count]
        for at, other in enumerate(text):
            row.append(min(above[at] + (letter != other), above[at + 1] + 1, row[at] + 1))
    return row
