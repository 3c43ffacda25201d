"""The language model's steps in plain PyTorch: the reference, and what runs on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tts_engine.lm import Admission
from tts_engine.models.config import SamplingConfig
from tts_engine.models.llm import KeyValueCache, SpeechLanguageModel
from tts_engine.sampling import push, ras, stop_mask
from tts_engine.vllm_plugin.ras import uniforms


class Drawn:
    """Ids that are there already; the shape of ``lm_cuda.Pending``."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    def ids(self) -> list[int]:
        return self._ids


class EagerLm:
    """Same interface as ``lm_cuda.CudaLm``."""

    def __init__(self, model: SpeechLanguageModel, *, slots: int, max_length: int) -> None:
        config = self.config = model.config
        self.model, self.slots, self.max_length = model, slots, max_length
        weight = model.speech_embedding.weight
        head = [model.llm_embedding.weight] if config.version == 2 else []
        self._table = torch.cat([weight, *head, model.backbone.embed_tokens.weight])
        self._cache = KeyValueCache(
            config, slots=slots, max_length=max_length, device=weight.device, dtype=weight.dtype
        )
        self._positions = torch.zeros(slots, dtype=torch.long)
        self._seeds, self._steps, self._least = (torch.zeros(slots, dtype=torch.long) for _ in range(3))
        self._history = torch.full((slots, SamplingConfig().window), -1)
        self._stops = stop_mask(config)

    def warm_up(self) -> None:
        pass

    @torch.inference_mode()
    def prefill(self, admissions: Sequence[Admission]) -> Drawn:
        ids = []
        for a in admissions:
            slot = torch.tensor([a.slot])
            self._cache.data[:, :, a.slot] = 0  # what is masked has weight 0, and 0 times a NaN left there is NaN
            hidden = self.model(
                self._table[torch.tensor(a.ids)][None], torch.zeros(1, dtype=torch.long), self._cache, slots=slot
            )
            self._positions[a.slot], self._seeds[a.slot] = len(a.ids), a.seed
            self._steps[a.slot], self._least[a.slot], self._history[a.slot] = 0, a.min_tokens, -1
            ids += self._draw(self.model.logits(hidden[:, -1]), slot)
        return Drawn(ids)

    @torch.inference_mode()
    def decode(self, slots: Sequence[int]) -> Drawn:
        rows = torch.tensor(slots)
        embedded = self._table[self._history[rows, -1]][:, None]
        hidden = self.model(embedded, self._positions[rows], self._cache, slots=rows)
        self._positions[rows] += 1
        return Drawn(self._draw(self.model.logits(hidden[:, 0]), rows))

    def _draw(self, logits: Tensor, rows: Tensor) -> list[int]:
        early = (self._steps[rows] < self._least[rows])[:, None] & self._stops
        draws = uniforms(self._seeds[rows], self._steps[rows])
        broken = ~logits.isfinite().all(dim=1)
        logits = logits.nan_to_num().masked_fill(early, float("-inf"))
        ids, _ = ras(logits, self._history[rows], draws, SamplingConfig())
        self._history[rows] = push(self._history[rows], ids)
        self._steps[rows] += 1
        out: list[int] = ids.masked_fill(broken, -1).tolist()
        return out
