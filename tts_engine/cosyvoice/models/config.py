"""Hyper-parameters of the networks as values. Defaults are those of the released 0.5B checkpoints.

Nothing here reads files: ``tts_engine.cosyvoice.weights`` fills these from a model directory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Version = Literal[2, 3]

SAMPLE_RATE = 24000
"""Sample rate of the audio, Hz."""
MEL_CHANNELS = 80
FRAMES_PER_TOKEN = 2
FRAME_SAMPLES = 480
"""Samples of one mel frame at 24 kHz (50 Hz)."""
LOOK_AHEAD_TOKENS = 3
"""Tokens after a chunk that its mel depends on (the pre-lookahead convolution has kernel 4)."""
SPEAKER_CHANNELS = 192


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """Repetition-aware sampling (RAS) and length bounds."""

    top_p: float = 0.8
    top_k: int = 25
    window: int = 10
    """Number of last generated ids that the repetition rule looks at."""
    tau_r: float = 0.1
    """Share of the window from which on an id counts as repeated."""
    min_ratio: float = 2.0
    """Fewest speech tokens per text token."""
    max_ratio: float = 20.0
    """Most speech tokens per text token."""

    @property
    def least_repeats(self) -> int:
        """Occurrences in the window from which on an id counts as repeated. An integer, so that all samplers agree."""
        return math.ceil(self.window * self.tau_r)

    def lengths(self, text_tokens: int) -> tuple[int, int]:
        """Return the fewest and most speech tokens for ``text_tokens`` ids of text, not counting the prompt."""
        return int(text_tokens * self.min_ratio), int(text_tokens * self.max_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelConfig:
    """The Qwen2 backbone and the speech head.

    Speech ids: 0 to ``speech_token_size - 1`` are codes, the ``extra_ids`` after them are control ids.
    """

    version: Version
    vocab_size: int = 151936
    hidden_size: int = 896
    intermediate_size: int = 4864
    layers: int = 24
    heads: int = 14
    kv_heads: int = 2
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-6
    max_positions: int = 32768
    speech_token_size: int = 6561
    text_block: int = 5
    """Text ids in one block of the interleaved layout (text streaming)."""
    speech_block: int = 15
    """Speech ids that follow one text block in the interleaved layout."""
    end_of_prompt_id: int = 151646
    """Text id of ``<|endofprompt|>``."""
    sampling: SamplingConfig = SamplingConfig()

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads

    @property
    def extra_ids(self) -> int:
        return 3 if self.version == 2 else 200

    @property
    def speech_vocab_size(self) -> int:
        """Rows of the speech embedding and of the head."""
        return self.speech_token_size + self.extra_ids

    @property
    def eos(self) -> int:
        return self.speech_token_size + (0 if self.version == 2 else 1)

    @property
    def fill(self) -> int:
        """The id with which the model asks for the next text block (interleaved layout)."""
        return self.speech_token_size + (2 if self.version == 2 else 3)

    @property
    def stop_ids(self) -> range:
        """Every id that ends a generation."""
        return range(self.speech_token_size, self.speech_vocab_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverConfig:
    """The Euler solver of the flow, and the chunks of its attention mask."""

    steps: int = 10
    cfg_rate: float = 0.7
    """Classifier-free guidance: v = (1 + rate) * v_cond - rate * v_uncond."""
    chunk_tokens: int = 25

    @property
    def chunk_frames(self) -> int:
        return self.chunk_tokens * FRAMES_PER_TOKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowV2Config:
    """CosyVoice2: conformer encoder and causal U-Net."""

    vocab_size: int = 6561
    dim: int = 512
    encoder_heads: int = 8
    encoder_ffn: int = 2048
    encoder_layers: int = 6
    up_layers: int = 4
    """Encoder layers after the upsampling; a constant in the published code."""
    channels: int = 256
    heads: int = 8
    head_dim: int = 64
    blocks: int = 4
    """Transformer blocks after each residual block."""
    mid_blocks: int = 12
    solver: SolverConfig = SolverConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowV3Config:
    """Fun-CosyVoice3: pre-lookahead convolution and diffusion transformer (DiT)."""

    vocab_size: int = 6561
    look_ahead_channels: int = 1024
    dim: int = 1024
    depth: int = 22
    heads: int = 16
    head_dim: int = 64
    ff_mult: int = 2
    solver: SolverConfig = SolverConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class HiftConfig:
    """The HiFT vocoder: harmonic source, up-sampling network, inverse STFT."""

    causal: bool
    """True: CosyVoice3's causal network. False: CosyVoice2's symmetric one."""
    base_channels: int = 512
    f0_channels: int = 512
    harmonics: int = 8
    """Overtones beside the fundamental."""
    sine_amplitude: float = 0.1
    noise_std: float = 0.003
    voiced_threshold_hz: float = 10.0
    upsample_rates: tuple[int, ...] = (8, 5, 3)
    upsample_kernels: tuple[int, ...] = (16, 11, 7)
    n_fft: int = 16
    hop: int = 4
    resblock_kernels: tuple[int, ...] = (3, 7, 11)
    resblock_dilations: tuple[int, ...] = (1, 3, 5)
    source_resblock_kernels: tuple[int, ...] = (7, 7, 11)
    leaky_slope: float = 0.1
    audio_limit: float = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """One checkpoint."""

    version: Version
    llm: LanguageModelConfig
    flow: FlowV2Config | FlowV3Config
    hift: HiftConfig
    random_weights: bool = False
    """True for a checkpoint of ``checkpoint.make``, whose output is noise."""
