"""Recognition of English with Moonshine tiny (MIT).

The model files come from the package ``moonshine-voice`` (the extra ``[recogniser]``). The package itself is not
imported: its library leaks 2 MB per utterance and takes four times the CPU. Architecture: Jeffries et al., *Moonshine:
Speech Recognition for Live Transcription and Voice Commands* (2024): an encoder over the whole utterance and a decoder
that writes one token at a time.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.seams.recogniser import SAMPLE_RATE

PACKAGE = "moonshine_voice"
_FOLDER = "assets/tiny-en"

_BEGIN, _END = 1, 2
_TOKENS = 32768
_TOKENS_PER_S = 6.5  # faster than any speech; with more tokens the decoder repeats itself (the paper's bound)
_SHORTEST = 1600  # samples; shorter audio has no frame
_HEADS, _HEAD_SIZE = 8, 36
_LEAST_LOG_PROBABILITY = -0.9
"""Mean log probability of the tokens below which the sound is taken for no speech. Whisper's is -1.0 (Radford et al.,
2022, section 4.5). Coughs and laughs had -1.3 to -0.85, and 38 of 40 shouts of one speaker more than -0.8."""


def installed() -> bool:
    """Return True if the extra is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def model_folder() -> Path:
    """Return the folder with the network and its tokens.

    Raises:
        FileNotFoundError: the package is not installed, or has no model (later versions download theirs).
    """
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(folder) / _FOLDER / "tokenizer.bin").is_file():
            return Path(folder) / _FOLDER
    raise FileNotFoundError(f"{_FOLDER} of the package moonshine-voice 0.0.49 is not installed")


class Moonshine:
    """The network, loaded and warmed up: a function from audio to words.

    Raises:
        FileNotFoundError: the model is not installed.
    """

    def __init__(self) -> None:
        from tts_engine.onnx_runtime import onnxruntime

        folder = model_folder()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the gateway on the same machine must not wait for a core
        options.inter_op_num_threads = 1
        options.log_severity_level = 3

        def session(name: str) -> Any:
            return onnxruntime.InferenceSession(str(folder / name), options, providers=["CPUExecutionProvider"])

        self._encoder, self._decoder = session("encoder_model.ort"), session("decoder_model_merged.ort")
        self._cache = [i.name for i in self._decoder.get_inputs() if i.name.startswith("past_key_values")]
        self._vocabulary = read_tokens((folder / "tokenizer.bin").read_bytes())
        self(np.zeros(SAMPLE_RATE, np.float32))  # the first run allocates memory

    def __call__(self, pcm: NDArray[np.float32]) -> str:
        """Return the words of speech of shape ``(samples,)``, 16 kHz. Empty: no words."""
        if len(pcm) < _SHORTEST:
            return ""
        tokens, probability = self._tokens(pcm)
        if probability < _LEAST_LOG_PROBABILITY:
            return ""
        text = self._text(tokens)
        # The network returns this word for silence, hiss and coughs; callers do not say it alone.
        return "" if text.strip(" .,!?").lower() == "you" else text

    def _tokens(self, pcm: NDArray[np.float32]) -> tuple[list[int], float]:
        """Return the tokens and the mean log probability of them and of the end."""
        sound = pcm[None].astype(np.float32)
        mask = np.ones(sound.shape, np.int64)
        (hidden,) = self._encoder.run(None, {"input_values": sound, "attention_mask": mask})
        given = {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}
        cache = dict.fromkeys(self._cache, np.zeros((1, _HEADS, 0, _HEAD_SIZE), np.float32))
        tokens: list[int] = []
        logarithms: list[float] = []
        token = _BEGIN
        for step in range(math.ceil(len(pcm) / SAMPLE_RATE * _TOKENS_PER_S)):
            logits, *after = self._decoder.run(
                None,
                {
                    "input_ids": np.array([[token]], np.int64),
                    "use_cache_branch": np.array([step > 0]),
                    **given,
                    **cache,
                },
            )
            scores = logits[0, -1]
            token = int(scores.argmax())
            logarithms.append(-math.log(float(np.exp(scores - scores[token]).sum())))
            if token == _END:
                break
            tokens.append(token)
            for name, value in zip(self._cache, after, strict=True):
                if step == 0 or ".decoder." in name:  # the encoder's part is computed once
                    cache[name] = value
        return tokens, sum(logarithms) / len(logarithms)

    def _text(self, tokens: list[int]) -> str:
        data = b"".join(self._vocabulary[token] for token in tokens)
        return data.decode("utf-8", "replace").replace("\u2581", " ").strip()


def read_tokens(data: bytes) -> list[bytes]:
    """Return the bytes of each token. In the file, each token follows its length: 7 bits a byte, low bits first; 0
    means unused."""
    tokens, at = [], 0
    while at < len(data):
        length, at = data[at], at + 1
        if length >= 128:
            length, at = length - 128 + data[at] * 128, at + 1
        tokens.append(data[at : at + length])
        at += length
    if len(tokens) != _TOKENS:
        raise ValueError(f"tokenizer.bin holds {len(tokens)} tokens, expected {_TOKENS}")
    return tokens
