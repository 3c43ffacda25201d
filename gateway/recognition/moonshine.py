"""English words by Moonshine tiny (MIT), as the package ``moonshine-voice`` carries it: the extra ``[recogniser]``."""

from __future__ import annotations

import importlib.util
import os
import re
import sys

import numpy as np
from numpy.typing import NDArray

from gateway.recognition.api import SAMPLE_RATE

PACKAGE = "moonshine_voice"


def installed() -> bool:
    """Whether the extra is here."""
    return importlib.util.find_spec(PACKAGE) is not None


class Moonshine:
    """The network, loaded and warm: a function from sound to words.

    It works on whole utterances (its encoder looks both ways); our VAD has found their beginning and end, so its own
    is off, which cut words in two.
    """

    def __init__(self) -> None:
        from moonshine_voice import ModelArch, Transcriber, get_model_path

        # One thread for the one utterance at a time: the library takes as many as there are cores, and they spin. It
        # asks the affinity how many that are.
        cores = os.sched_getaffinity(0) if sys.platform == "linux" else set()
        if cores:
            os.sched_setaffinity(0, {min(cores)})
        try:
            self._network = Transcriber(str(get_model_path("tiny-en")), ModelArch.TINY, options={"vad_threshold": "0"})
        finally:
            if cores:
                os.sched_setaffinity(0, cores)
        self(np.zeros(SAMPLE_RATE, np.float32))  # the first run allocates

    def __call__(self, pcm: NDArray[np.float32]) -> str:
        """Words of speech; shape ``(samples,)``, 16 kHz. Empty where there are none."""
        lines = self._network.transcribe_without_streaming(pcm.tolist(), SAMPLE_RATE).lines
        text = " ".join(line.text.strip() for line in lines).strip()
        # What it says of silence, hiss and coughs, always (measured); nobody says this alone.
        return "" if re.sub(r"\W", "", text).lower() == "you" else text
