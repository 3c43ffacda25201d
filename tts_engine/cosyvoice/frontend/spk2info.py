"""Reads CosyVoice's own voice file, ``spk2info.pt``.

The file maps voice ids to dicts. An entry with ``flow_prompt_speech_token`` is a registered recording with its prompt
text as token ids. An entry with only ``embedding`` is a speaker vector (``sft``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tts_engine.cosyvoice.frontend.features import MEL_BINS, SPEAKER_DIM, VoiceFeatures, align_prompt
from tts_engine.cosyvoice.frontend.frontend import SYSTEM_PROMPT
from tts_engine.cosyvoice.frontend.tokenizer import END_OF_PROMPT, CosyTokenizer
from tts_engine.errors import InvalidRequest


def read_spk2info(path: Path, tokenizer: CosyTokenizer) -> dict[str, VoiceFeatures]:
    """Return the voices of a file. Prompts are trimmed by ``align_prompt``, like those of new registrations.

    Raises:
        InvalidRequest: the file is not a ``spk2info.pt``, or a tensor is missing or has the wrong shape.
    """
    try:
        # Only tensors are read: a pickle from an untrusted source can run any code.
        table = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as exc:  # torch raises OSError, RuntimeError and several pickle errors
        raise InvalidRequest(f"{path} cannot be read as spk2info.pt: {exc}", field="path") from exc
    if not isinstance(table, dict) or not all(isinstance(entry, dict) for entry in table.values()):
        raise InvalidRequest(f"{path} holds {type(table).__name__}, expected a dict of dicts", field="path")
    return {str(voice_id): _voice(str(voice_id), entry, tokenizer) for voice_id, entry in table.items()}


def _voice(voice_id: str, entry: Mapping[str, Any], tokenizer: CosyTokenizer) -> VoiceFeatures:
    if "flow_prompt_speech_token" not in entry:
        key = "embedding" if "embedding" in entry else "flow_embedding"
        return VoiceFeatures(
            transcript="",
            lm_tokens=np.zeros(0, np.int32),
            flow_tokens=np.zeros(0, np.int32),
            flow_mel=np.zeros((0, MEL_BINS), np.float32),
            speaker=_array(voice_id, entry, key, (SPEAKER_DIM,), np.float32),
        )
    prompt_text = tokenizer.decode(_array(voice_id, entry, "prompt_text", (-1,), np.int32).tolist())
    voice = align_prompt(
        prompt_text.removeprefix(SYSTEM_PROMPT + END_OF_PROMPT),
        _array(voice_id, entry, "flow_prompt_speech_token", (-1,), np.int32),
        _array(voice_id, entry, "prompt_speech_feat", (-1, MEL_BINS), np.float32),
        _array(voice_id, entry, "flow_embedding", (SPEAKER_DIM,), np.float32),
    )
    lm_tokens = _array(voice_id, entry, "llm_prompt_speech_token", (-1,), np.int32)
    return VoiceFeatures(
        transcript=voice.transcript,
        lm_tokens=lm_tokens,
        flow_tokens=voice.flow_tokens,
        flow_mel=voice.flow_mel,
        speaker=voice.speaker,
    )


def _array(
    voice_id: str, entry: Mapping[str, Any], key: str, shape: tuple[int, ...], dtype: type[np.generic]
) -> NDArray[Any]:
    value = entry.get(key)
    if not isinstance(value, torch.Tensor):
        raise InvalidRequest(f"voice {voice_id!r}: {key} is {type(value).__name__}, expected a tensor", field=key)
    try:
        return value.detach().float().numpy().reshape(shape).astype(dtype)
    except ValueError as exc:
        raise InvalidRequest(
            f"voice {voice_id!r}: {key} has shape {tuple(value.shape)}, expected {shape}", field=key
        ) from exc
