"""Recognition of 99 languages with a Whisper model that the user has (extra ``[whisper]``: faster-whisper, MIT).

The folder is one that CTranslate2's converter has written. Nothing is downloaded. Whisper pads every recording to 30 s,
which costs two seconds of a core; here the window ends soon after the speech, which costs a tenth of that. The network
then sometimes repeats itself, so such an answer is asked for again with a longer window, and a repetition that stays is
cut off (Radford et al., *Robust Speech Recognition via Large-Scale Weak Supervision* (2022), section 4.5, on loops).
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.recognition.words import ANY_LANGUAGE, Words, repetition
from gateway.seams.recogniser import SAMPLE_RATE

PACKAGE = "faster_whisper"
HANG_S = 60.0
"""Longest work on one utterance, seconds; a large model on a busy machine needs many."""

_FILES = ("config.json", "model.bin", "tokenizer.json")

_FRAMES_PER_S = 100
_PADDING_S = (1.0, 3.0)
"""Silence after the speech, seconds, until the network does not repeat itself."""
_MOST_S = 30
_SHORTEST = 1600  # samples; shorter audio has no word
_TOKENS_PER_S, _TOKENS_MORE = 9, 8  # no one speaks faster, so more tokens are a repetition
_NO_SPEECH, _LEAST_SCORE = 0.6, -1.0
"""The answer is no speech if it is above the one and below the other; the values of OpenAI's program."""
_NOISE_SCORE, _NOISE_WORD_SCORE = -1.4, -3.0
"""An answer with less, and one of one or two tokens with less than the second, is noise. White noise had -1.8 and -3.4
and less, speech -1.0 and -2.0 and more."""

_LANGUAGES = frozenset(
    "af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he hi hr ht hu hy id "
    "is it ja jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl nn no oc pa pl ps pt ro ru sa sd si "
    "sk sl sn so sq sr su sv sw ta te tg th tk tl tr tt uk ur uz vi yi yo zh".split()
)


def installed() -> bool:
    """Return True if the extra is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def missing_file(folder: Path) -> str:
    """Return the name of a file that a model's folder lacks. Empty: none."""
    return next((name for name in _FILES if not (folder / name).is_file()), "")


def knows(language: str) -> bool:
    """Return True if a model of all languages understands the language of a BCP 47 tag."""
    return language == ANY_LANGUAGE or language.lower().split("-")[0] in _LANGUAGES


class Whisper:
    """The network, loaded and warmed up: a function from audio to words.

    Raises:
        FileNotFoundError: the folder lacks a file of the model.
    """

    def __init__(self, folder: Path) -> None:
        if name := missing_file(folder):
            raise FileNotFoundError(f"{folder} has no {name}")
        os.environ["HF_HUB_OFFLINE"] = "1"  # the package would ask a host for a file that is missing
        from faster_whisper import WhisperModel
        from faster_whisper.tokenizer import Tokenizer

        self._network: Any = WhisperModel(
            str(folder), device="cpu", compute_type="int8", cpu_threads=1, local_files_only=True
        )
        self._tokenizer_of: Any = Tokenizer
        lines = json.loads((folder / "config.json").read_text("utf-8")).get("lang_ids", ())
        self._multilingual = len(lines) > 1
        self(np.zeros(SAMPLE_RATE, np.float32), "en", "")  # the first run allocates memory

    def __call__(self, pcm: NDArray[np.float32], language: str, begun: str) -> Words:
        """Return the words of speech of shape ``(samples,)``, 16 kHz.

        Args:
            language: BCP 47 tag, or ``ANY_LANGUAGE``.
            begun: the words with which the answer begins.
        """
        if len(pcm) < _SHORTEST:
            return Words(begun)
        pcm = pcm[-_MOST_S * SAMPLE_RATE :]
        spoken = self._network.feature_extractor(pcm)[:, : len(pcm) * _FRAMES_PER_S // SAMPLE_RATE]
        code = language.lower().split("-")[0]
        text = ""
        for padding_s in _PADDING_S:
            frames = min(spoken.shape[1] + int(padding_s * _FRAMES_PER_S), _MOST_S * _FRAMES_PER_S) // 2 * 2
            padded = np.pad(spoken[:, :frames], ((0, 0), (0, max(0, frames - spoken.shape[1]))))
            encoded = self._network.encode(padded)
            if language == ANY_LANGUAGE:
                code = self._detected(encoded)
            text, whole = self._decoded(encoded, code, begun, len(pcm) / SAMPLE_RATE)
            if whole and not repetition(text):
                break
        else:
            text = text[: repetition(text) or len(text)].strip()
        return Words(text, code)

    def _detected(self, encoded: Any) -> str:
        if not self._multilingual:
            return "en"
        ((best, _), *_) = self._network.model.detect_language(encoded)[0]
        return str(best).strip("<|>")

    def _decoded(self, encoded: Any, code: str, begun: str, seconds: float) -> tuple[str, bool]:
        """Return the text, and False if it has more tokens than anyone speaks."""
        tokenizer = self._tokenizer_of(self._network.hf_tokenizer, self._multilingual, task="transcribe", language=code)
        prompt = self._network.get_prompt(tokenizer, [], without_timestamps=True, prefix=begun or None)
        most = len(prompt) + int(seconds * _TOKENS_PER_S) + _TOKENS_MORE
        (result,) = self._network.model.generate(
            encoded,
            [prompt],
            beam_size=1,
            max_length=most,
            suppress_blank=True,
            suppress_tokens=[-1],
            return_scores=True,
            return_no_speech_prob=True,
        )
        tokens = result.sequences_ids[0]  # those of ``begun`` too
        score = result.scores[0]
        least = _NOISE_SCORE if len(tokens) > 2 else _NOISE_WORD_SCORE
        if score < least or (result.no_speech_prob > _NO_SPEECH and score < _LEAST_SCORE):
            return begun, True
        return str(tokenizer.decode(tokens)).strip(), len(tokens) < most - len(prompt)
