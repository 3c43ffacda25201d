"""Writes upstream's ``spk2info.pt``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from tts_engine.cosyvoice.frontend.features import VoiceFeatures
from tts_engine.cosyvoice.frontend.frontend import SYSTEM_PROMPT
from tts_engine.cosyvoice.frontend.tokenizer import END_OF_PROMPT, CosyTokenizer


def write_spk2info(path: Path, voices: Mapping[str, VoiceFeatures], tokenizer: CosyTokenizer, *, version: int) -> None:
    """Write voices for upstream's ``zero_shot_spk_id`` or ``inference_sft``."""
    table: dict[str, dict[str, torch.Tensor]] = {}
    for voice_id, voice in voices.items():
        speaker = torch.from_numpy(voice.speaker.copy())[None]
        if not voice.flow_tokens.size:
            table[voice_id] = {"embedding": speaker}
            continue
        prefix = SYSTEM_PROMPT + END_OF_PROMPT if version == 3 and END_OF_PROMPT not in voice.transcript else ""
        entry = {
            "prompt_text": torch.tensor([tokenizer.encode(prefix + voice.transcript)], dtype=torch.int32),
            "llm_prompt_speech_token": torch.from_numpy(voice.lm_tokens.copy())[None],
            "flow_prompt_speech_token": torch.from_numpy(voice.flow_tokens.copy())[None],
            "prompt_speech_feat": torch.from_numpy(voice.flow_mel.copy())[None],
        }
        lengths = {f"{key}_len": torch.tensor([value.shape[1]], dtype=torch.int32) for key, value in entry.items()}
        table[voice_id] = {**entry, **lengths, "llm_embedding": speaker, "flow_embedding": speaker.clone()}
    torch.save(table, path)
