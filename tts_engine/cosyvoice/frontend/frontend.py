"""Turns a clause and a voice into a request for the language model: ids, prompt and length bounds.

The model's sequence is ``[sos] prompt_text text [task] prompt_speech``, followed by the new speech tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tts_engine.cosyvoice.frontend.features import FeatureExtractor, VoiceFeatures
from tts_engine.cosyvoice.frontend.normalise import (
    Normalised,
    Verbaliser,
    default_verbaliser,
    is_only_punctuation,
    normalise,
    plain_verbaliser,
)
from tts_engine.cosyvoice.frontend.tokenizer import END_OF_PROMPT, CosyTokenizer, Version
from tts_engine.cosyvoice.frontend.words import Word, Wording, expected_words
from tts_engine.errors import InvalidRequest
from tts_engine.speech_marks import without_marks

SYSTEM_PROMPT = "You are a helpful assistant."
"""First text of every version 3 prompt. Version 2 has none."""

MIN_TOKENS_PER_TEXT_ID = 2
MAX_TOKENS_PER_TEXT_ID = 20

Mode = Literal["zero_shot", "cross_lingual", "instruct", "sft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LmPrompt:
    """One request of the language model. Arrays are int32 of shape ``(n,)``."""

    prompt_text: NDArray[np.int32]
    text: NDArray[np.int32]
    prompt_speech: NDArray[np.int32]
    min_tokens: int
    """Fewest speech tokens. Stop ids are masked until then."""
    max_tokens: int
    """Most speech tokens. Longer clauses are cut."""
    shared: int
    """Number of leading text ids that other clauses of the voice share."""


class Frontend:
    """The text front end of one model directory. ``prompt`` and ``clause`` may be called from several threads."""

    def __init__(self, folder: Path, *, version: Version, verbalise: Verbaliser | None = None) -> None:
        """
        Args:
            folder: a model directory in the official layout.
            version: 2 or 3.
            verbalise: turns numbers and dates into words. None: ``default_verbaliser()``.

        Raises:
            SynthesisFailed: the tokenizer folder is missing or broken.
        """
        self.version: Version = version
        self.tokenizer_folder = folder / "CosyVoice-BlankEN"
        self.tokenizer = CosyTokenizer.load(self.tokenizer_folder, version=version)
        self.features = FeatureExtractor(folder, version=version)
        self._verbalise = verbalise or default_verbaliser()
        # The same few transcripts and instructions are part of every request.
        self._transcript = lru_cache(maxsize=1024)(lambda transcript: self.normalise(transcript).text)
        self._prompt_ids = lru_cache(maxsize=1024)(self._ids)

    @property
    def verbalises(self) -> bool:
        """True if ``normalise`` verbalises numbers and dates, which takes milliseconds."""
        return self._verbalise is not plain_verbaliser

    def normalise(self, text: str, language: str = "") -> Normalised:
        return normalise(text, language, verbalise=self._verbalise)

    def wording(self, text: str, language: str = "") -> Wording:
        """Return the wording of a text. ``language`` is a BCP 47 tag. Takes milliseconds if ``verbalises``."""
        return Wording.of(self.normalise(text, language), self.tokenizer.encode)

    def clause(self, wording: Wording, voice: VoiceFeatures, *, instruct: str = "") -> LmPrompt:
        """Return the language model's request for one clause.

        Raises:
            InvalidRequest: nothing in the text can be spoken.
        """
        if is_only_punctuation(wording.normalised.text.replace(" ", "")):
            raise InvalidRequest(
                f"the text has {len(wording.normalised.source)} characters, expected at least one that can be spoken"
            )
        mode = choose_mode(voice, instruct=instruct)
        return self.prompt(wording.ids, voice, mode=mode, instruct=instruct)

    def streamed(self, voice: VoiceFeatures, *, instruct: str = "") -> LmPrompt | None:
        """Return a request without text, for text that arrives in pieces. None: this combination of voice and
        instruction cannot be streamed."""
        mode = choose_mode(voice, instruct=instruct)
        return self.prompt([], voice, mode=mode, instruct=instruct) if mode in ("zero_shot", "instruct") else None

    def piece(self, text: str, language: str = "") -> tuple[Sequence[int], Sequence[Word]]:
        """Return the ids and the words of a piece of streamed text: whole words with the space before them.

        As in upstream, streamed text is not verbalised, because that needs the surrounding words.
        """
        return self.tokenizer.encode(without_marks(text)), expected_words(normalise(text, language))

    def prompt(self, text: Sequence[int], voice: VoiceFeatures, *, mode: Mode, instruct: str = "") -> LmPrompt:
        """Lay out the request.

        ========== ======================================= =================== =============
        mode       prompt text                             text                prompt speech
        ========== ======================================= =================== =============
        zero_shot  [v3: system, end of prompt] transcript  text                the voice's
        instruct   [v3: system] instruct, end of prompt    text                none
        others     none                                    [v3: system, end    none
                                                           of prompt] text
        ========== ======================================= =================== =============

        A prefix that the text already has is not added again. Lengths count ``text`` with its prefix, as upstream does.

        Args:
            text: the ids of the normalised text.
        """
        has_prefix = self.version == 2 or self.tokenizer.end_of_prompt_id in text
        prefix = "" if has_prefix else SYSTEM_PROMPT + END_OF_PROMPT
        prompt_text, prompt_speech = "", voice.lm_tokens[:0]
        if mode == "zero_shot":
            transcript = self._transcript(voice.transcript)
            prompt_text = transcript if END_OF_PROMPT in transcript else prefix + transcript
            prompt_speech = voice.lm_tokens
        elif mode == "instruct":
            prompt_text = instruct.strip()
            if END_OF_PROMPT not in prompt_text:
                # Without the end-of-prompt mark the model would read the instruction aloud.
                system = SYSTEM_PROMPT + " " if self.version == 3 else ""
                prompt_text = system + prompt_text + END_OF_PROMPT
        first = self._prompt_ids(prompt_text)
        prefix_ids = self._prompt_ids(prefix if mode in ("cross_lingual", "sft") else "")
        ids = np.concatenate([prefix_ids, np.array(text, np.int32)])
        return LmPrompt(
            prompt_text=first,
            text=ids,
            prompt_speech=prompt_speech,
            min_tokens=MIN_TOKENS_PER_TEXT_ID * len(ids),
            max_tokens=MAX_TOKENS_PER_TEXT_ID * len(ids),
            shared=len(first) + len(prefix_ids),
        )

    def _ids(self, text: str) -> NDArray[np.int32]:
        ids = np.array(self.tokenizer.encode(text), np.int32)
        ids.flags.writeable = False  # cached arrays are shared between clauses
        return ids


def choose_mode(voice: VoiceFeatures, *, instruct: str = "") -> Mode:
    """Return the mode that uses the most of what is given: instruction, transcript, recording, or speaker vector."""
    if instruct.strip():
        return "instruct"
    if not voice.flow_tokens.size:
        return "sft"
    return "zero_shot" if voice.transcript.strip() and voice.lm_tokens.size else "cross_lingual"
