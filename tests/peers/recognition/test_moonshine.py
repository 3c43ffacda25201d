"""The embedded network: its words are those of the library that it comes with, and it keeps nothing of an utterance."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.recognition import moonshine
from gateway.recognition.moonshine import Moonshine, read_tokens
from tests.peers.recognition.heard import speech, words

SENTENCES = (
    "What are your opening hours?",
    "My order number is four seven one one.",
    "I would like to change my delivery address, and then I want to know when it comes.",
    "Yeah.",
)


@pytest.fixture(scope="module")
def network() -> Moonshine:
    return Moonshine()


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    from moonshine_voice import ModelArch, Transcriber, get_model_path

    made = Transcriber(str(get_model_path("tiny-en")), ModelArch.TINY, options={"vad_threshold": "0"})
    yield made
    made.close()


@pytest.mark.parametrize("text", SENTENCES)
def test_words_are_those_of_the_library(network: Moonshine, library: Any, text: str) -> None:
    pause = np.zeros(4000, np.float32)
    pcm = np.concatenate((pause, speech(text, rate=16000), pause))
    lines = library.transcribe_without_streaming(pcm.tolist(), 16000).lines
    heard = words(network(pcm))  # of two full stops that are nearly as likely, another build takes the other
    assert heard == words(" ".join(line.text for line in lines))
    assert len(set(heard) & set(words(text))) >= len(set(words(text))) - 2


def test_silence_noise_and_snippets_have_no_words(network: Moonshine) -> None:
    noise = np.random.default_rng(7).normal(0, 0.03, 16000).astype(np.float32)
    assert [network(pcm) for pcm in (np.zeros(16000, np.float32), noise, noise[:320], noise[:0])] == [""] * 4


@pytest.mark.parametrize("seed", [45, 58])
def test_words_of_which_the_network_is_not_sure_are_none(network: Moonshine, seed: int) -> None:
    rng, at_s = np.random.default_rng(seed), np.arange(12000) / 16000  # a puff of breath
    noise = np.convolve(rng.normal(0, 0.2, 12000), np.hanning(rng.integers(3, 30)), "same")
    puff = (noise * np.exp(-((at_s - 0.2) * rng.uniform(3, 15)).clip(0)) * (at_s > 0.2)).astype(np.float32)
    puff *= np.float32(0.3) / np.abs(puff).max()
    tokens, probability = network._tokens(puff)
    assert network._text(tokens) and probability < -1.2, "it has written words"
    assert network(puff) == ""


def test_it_keeps_nothing_of_an_utterance(network: Moonshine) -> None:
    pcm = speech(SENTENCES[1], rate=16000)
    network(pcm)
    before = resident_mb()
    for cut in range(40):
        network(pcm[: len(pcm) - 300 * cut])
    assert resident_mb() - before < 20  # the library would have kept 70


def resident_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]


def test_tokens_that_are_not_this_models_are_refused() -> None:
    with pytest.raises(ValueError, match="holds 2 tokens, expected 32768"):
        read_tokens(b"\x01a\x02bc")


def test_missing_model_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moonshine, "_FOLDER", "assets/other")
    with pytest.raises(FileNotFoundError, match="not installed"):
        Moonshine()
