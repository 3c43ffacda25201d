"""Flow of CosyVoice2: token embedding, conformer encoder with upsampling, causal U-Net."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from tts_engine.cosyvoice.models.config import MEL_CHANNELS, FlowV2Config
from tts_engine.cosyvoice.models.conformer import UpsampleConformer
from tts_engine.cosyvoice.models.flow import EstimatorHolder, Flow
from tts_engine.cosyvoice.models.streaming import PagedKeys, Span, number_tails
from tts_engine.cosyvoice.models.unet import CausalUNet


class FlowV2(Flow):
    def __init__(self, config: FlowV2Config) -> None:
        super().__init__(config.solver, vocab_size=config.vocab_size, token_channels=config.dim)
        self.encoder: Any = UpsampleConformer(config)  # replaced by FusedConformer on a GPU
        self.encoder_proj = nn.Linear(config.dim, MEL_CHANNELS)
        self.encoder_layers = (config.encoder_layers, config.up_layers)
        self.encoder_channels = config.dim
        self.condition_tail_shapes = number_tails(self.encoder)
        self.decoder = EstimatorHolder(CausalUNet(config))

    def condition(self, tokens: Tensor, valid: Tensor, span: Span, frame_keys: PagedKeys | None = None) -> Tensor:
        h = self.encoder(self.input_embedding(tokens.clamp(min=0)), valid, span, frame_keys)
        return cast(Tensor, self.encoder_proj(h))
