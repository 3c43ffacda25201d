"""The language model's steps in plain PyTorch: the reference, and the implementation for CPUs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tts_engine.cosyvoice.lm.api import DRAW, INTERLEAVED, Input, SequencePrefill
from tts_engine.cosyvoice.models.llm import KeyValueCache, SpeechLanguageModel
from tts_engine.cosyvoice.sampling import push, ras, stop_mask, uniforms


class Drawn:
    """Ids that are already known, with the interface of ``cuda_steps.Pending``."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    def ids(self) -> list[int]:
        return self._ids


class EagerLm:
    """The steps, with the interface of ``cuda_steps.CudaLm``."""

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
        self._history = torch.full((slots, config.sampling.window), -1)
        self._stops = stop_mask(config)
        self._fill = torch.arange(config.speech_vocab_size) == config.fill

    def warm_up(self) -> None:
        pass

    def computed(self, admission: SequencePrefill) -> int:
        """See ``torch_lm.LmSteps``. Prefixes are not cached."""
        return len(admission.ids)

    def filled(self, rows: int) -> int:
        """See ``torch_lm.LmSteps``. On a CPU every row costs time."""
        return rows

    @torch.inference_mode()
    def prefill(self, admissions: Sequence[SequencePrefill]) -> Drawn:
        ids = []
        for a in admissions:
            slot = torch.tensor([a.slot])
            self._cache.data[:, :, a.slot] = 0  # a masked key has weight 0, but 0 times an old NaN is NaN
            hidden = self.model(
                self._table[torch.tensor(a.ids)][None], torch.zeros(1, dtype=torch.long), self._cache, slots=slot
            )
            self._positions[a.slot], self._seeds[a.slot] = len(a.ids), a.seed
            self._steps[a.slot], self._least[a.slot], self._history[a.slot] = 0, a.min_tokens, -1
            ids += self._draw(self.model.logits(hidden[:, -1]), slot)
        return Drawn(ids)

    @torch.inference_mode()
    def decode(self, slots: Sequence[int], inputs: Sequence[Input] = ()) -> Drawn:
        rows = torch.tensor(slots)
        fed = self._history[rows, -1]
        draws = torch.full_like(rows, DRAW)
        for given in inputs:
            row = slots.index(given.slot)
            fed[row], draws[row], self._least[given.slot] = given.id, given.draw, given.min_tokens
        hidden = self.model(self._table[fed][:, None], self._positions[rows], self._cache, slots=rows)
        self._positions[rows] += 1
        logits = self.model.logits(hidden[:, 0])
        ids = torch.zeros_like(rows)
        drawing = draws == DRAW
        if drawing.any():
            ids[drawing] = torch.tensor(self._draw(logits[drawing], rows[drawing]))
        forced = draws >= 0
        ids[forced] = draws[forced]
        self._push(rows[forced], ids[forced])
        out: list[int] = ids.tolist()
        return Drawn(out)

    def _draw(self, logits: Tensor, rows: Tensor) -> list[int]:
        broken = (logits.isnan() | logits.isposinf()).any(dim=1)
        logits = logits.where(~broken[:, None], torch.zeros_like(logits)).masked_fill(self._masked(rows), float("-inf"))
        ids = self._pick(logits, rows)
        self._push(rows, ids)
        out: list[int] = ids.masked_fill(broken, -1).tolist()
        return out

    def _masked(self, rows: Tensor) -> Tensor:
        """Return True for ids that must not be drawn now, ``(rows, ids)``."""
        least = self._least[rows][:, None]
        return self._stops & ((self._steps[rows][:, None] < least) | (least == INTERLEAVED) & ~self._fill)

    def _pick(self, logits: Tensor, rows: Tensor) -> Tensor:
        draws = uniforms(self._seeds[rows], self._steps[rows])
        ids, _ = ras(logits, self._history[rows], draws, self.config.sampling)
        return ids

    def _push(self, rows: Tensor, ids: Tensor) -> None:
        self._history[rows] = push(self._history[rows], ids)
        self._steps[rows] += 1
