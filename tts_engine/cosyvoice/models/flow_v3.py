"""Flow of Fun-CosyVoice3: token embedding, pre-lookahead, repetition to 50 Hz, DiT. It has no encoder."""

from __future__ import annotations

import torch
from torch import Tensor

from tts_engine.cosyvoice.models.config import FRAMES_PER_TOKEN, MEL_CHANNELS, FlowV3Config
from tts_engine.cosyvoice.models.dit import DiT
from tts_engine.cosyvoice.models.flow import EstimatorHolder, Flow
from tts_engine.cosyvoice.models.lookahead import PreLookahead
from tts_engine.cosyvoice.models.streaming import PagedKeys, Span, number_tails


class FlowV3(Flow):
    def __init__(self, config: FlowV3Config) -> None:
        super().__init__(config.solver, vocab_size=config.vocab_size, token_channels=MEL_CHANNELS)
        self.pre_lookahead_layer = PreLookahead(MEL_CHANNELS, config.look_ahead_channels)
        self.condition_tail_shapes = number_tails(self.pre_lookahead_layer)
        self.decoder = EstimatorHolder(DiT(config))

    def condition(self, tokens: Tensor, valid: Tensor, span: Span, frame_keys: PagedKeys | None = None) -> Tensor:
        x = self.input_embedding(tokens.clamp(min=0))
        x = x * (torch.arange(x.shape[1], device=x.device) < valid[:, None])[:, :, None]
        out: Tensor = self.pre_lookahead_layer(x, span).repeat_interleave(FRAMES_PER_TOKEN, dim=1)
        return out
