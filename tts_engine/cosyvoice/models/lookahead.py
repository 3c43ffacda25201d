"""The pre-lookahead convolution that opens the flow of both versions: three tokens of right context, then causal."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from tts_engine.cosyvoice.models.config import LOOK_AHEAD_TOKENS
from tts_engine.cosyvoice.models.streaming import CausalConv1d, Span


class PreLookahead(nn.Module):
    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, inner, LOOK_AHEAD_TOKENS + 1)
        self.conv2 = CausalConv1d(inner, channels, 3)

    def forward(self, x: Tensor, span: Span) -> Tensor:
        """Turn ``(rows, n + 3, channels)`` into ``(rows, n, channels)``. The last three frames are look-ahead only.

        At the end of an utterance the look-ahead is zeros.
        """
        y = F.leaky_relu(self.conv1(x.transpose(1, 2)).transpose(1, 2), 0.01)
        out: Tensor = x[:, :-LOOK_AHEAD_TOKENS] + self.conv2(y, span)
        return out
