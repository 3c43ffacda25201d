"""Products, also those of numbers of lines that go with some more."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch.nn import functional as F

from tts_engine.cosyvoice.kernels.product import empty_lines, product

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("lines", [100, 640, 650])
@pytest.mark.parametrize("gelu", [None, "tanh"])
def test_lines_that_go_along_change_nothing(lines: int, gelu: Literal["tanh"] | None) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(24, 16, device=DEVICE) / 4, torch.randn(24, device=DEVICE)
    x = empty_lines(lines, 16, device=DEVICE, dtype=torch.float32)
    x.as_strided((lines + 8, 16), (16, 1)).fill_(float("nan"))  # what uninitialised memory may hold
    x.copy_(torch.randn(lines, 16))
    want = F.linear(x, weight, bias)
    want = want if gelu is None else F.gelu(want, approximate=gelu)
    got = product(x, weight, bias, gelu=gelu)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    again = torch.randn(16, 24, device=DEVICE)
    torch.testing.assert_close(product(got, again, None), want @ again.t(), atol=1e-4, rtol=1e-4)
