"""One id space for all inputs of the language model: ``[speech | start and task | text]``.

With joined embedding tables, a prompt is an array of plain ids. The head covers only the first part. In version 3 the
start and task rows are part of the speech table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from tts_engine.cosyvoice.vllm_plugin import ARCHITECTURE
from tts_engine.errors import SynthesisFailed

TABLE_FILE = "joined_table.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedTable:
    """The layout of the joined table."""

    speech_tokens: int
    """Number of speech tokens: 6561. The head has the stop and control ids after them."""
    head_size: int
    """Number of logits: 6564 (version 2) or 6761 (version 3)."""
    start: int
    task: int
    text_offset: int
    """Joined id of the first text id."""
    size: int

    @property
    def stop_ids(self) -> list[int]:
        return list(range(self.speech_tokens, self.head_size))

    def prompt(
        self, prompt_text: NDArray[np.int32], text: NDArray[np.int32], prompt_speech: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """Return the ids of a request: start, texts, task, prompt speech.

        Raises:
            SynthesisFailed: an id is outside its table: tokenizer and model do not match.
        """
        texts = np.concatenate([prompt_text, text]).astype(np.int64) + self.text_offset
        if texts.size and (texts.min() < self.text_offset or texts.max() >= self.size):
            raise SynthesisFailed(f"text id {texts.max() - self.text_offset} is outside the model's text table")
        if prompt_speech.size and (prompt_speech.min() < 0 or prompt_speech.max() >= self.speech_tokens):
            raise SynthesisFailed(f"speech id {prompt_speech.max()} is outside the codebook of {self.speech_tokens}")
        return np.concatenate([[self.start], texts, [self.task], prompt_speech])

    @staticmethod
    def load(folder: Path) -> JoinedTable:
        return JoinedTable(**json.loads((folder / TABLE_FILE).read_text("utf-8")))


_BODY = "llm.model."


def export_vllm(
    weights: Mapping[str, torch.Tensor],
    config: Mapping[str, Any],
    folder: Path,
    *,
    speech_tokens: int = 6561,
    dtype: torch.dtype = torch.bfloat16,
) -> JoinedTable:
    """Write a vLLM model folder from the state dict of an official ``llm.pt``.

    Args:
        weights: the official keys (``llm.model.model.*``, ``speech_embedding.weight``, ``llm_decoder.*`` and, in
            version 2, ``llm_embedding.weight``).
        config: ``config.json`` of the ``CosyVoice-BlankEN`` folder (a Qwen2 configuration).
        folder: the folder; created if missing. A full-size model takes about 1 GB in bfloat16.

    Raises:
        SynthesisFailed: a tensor is missing.
    """
    needed = ("speech_embedding.weight", "llm_decoder.weight", f"{_BODY}model.embed_tokens.weight")
    if missing := [key for key in needed if key not in weights]:
        raise SynthesisFailed(f"language model weights lack {', '.join(missing)}")
    speech, text = weights[needed[0]], weights[needed[2]]
    head_size = weights[needed[1]].shape[0]
    start_and_task = weights.get("llm_embedding.weight")
    table = JoinedTable(
        speech_tokens=speech_tokens,
        head_size=head_size,
        start=head_size if start_and_task is not None else speech_tokens,
        task=head_size + 1 if start_and_task is not None else speech_tokens + 2,
        text_offset=(offset := speech.shape[0] + (2 if start_and_task is not None else 0)),
        size=offset + text.shape[0],
    )
    replaced = {f"{_BODY}model.embed_tokens.weight", f"{_BODY}lm_head.weight"}
    tensors = {
        key.removeprefix(_BODY): value
        for key, value in weights.items()
        if key.startswith(_BODY) and key not in replaced
    }
    parts = [speech, text] if start_and_task is None else [speech, start_and_task, text]
    tensors["model.embed_tokens.weight"] = torch.cat(parts)
    tensors["lm_head.weight"] = weights["llm_decoder.weight"]
    if has_bias := "llm_decoder.bias" in weights:
        tensors["lm_head.bias"] = weights["llm_decoder.bias"]
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {key: value.to(dtype).contiguous() for key, value in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    ours = {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen2",
        "vocab_size": table.size,
        "speech_vocab_size": head_size,
        "speech_head_bias": has_bias,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    # The text model's begin and end ids are dropped: they would end a clause at speech tokens of the same number.
    kept = {key: value for key, value in config.items() if key not in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (folder / "config.json").write_text(json.dumps({**kept, **ours}, indent=2), "utf-8")
    (folder / TABLE_FILE).write_text(
        json.dumps(asdict(table), indent=2), "utf-8"
    )  # written last: marks the folder as complete
    return table
