"""The vocoders' kernels against plain torch, and the fused networks against the plain ones, as in ``test_kernels``."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined

from tts_engine.cosyvoice.kernels import vocoder as kernels
from tts_engine.cosyvoice.kernels.fused_hift import _transposed, fuse
from tts_engine.cosyvoice.models.config import HiftConfig
from tts_engine.cosyvoice.models.hift import Hift, Snake
from tts_engine.cosyvoice.models.hift_causal import CausalHift

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def _snake(x: Tensor, alpha: Tensor) -> Tensor:
    """``x``: ``(rows, n, channels)``."""
    snake = Snake(len(alpha)).to(x.device)
    snake.alpha.data = alpha
    return snake(x.transpose(1, 2)).transpose(1, 2).detach()


def _convolved(x: Tensor, weight: Tensor, bias: Tensor, dilation: int = 1) -> Tensor:
    weight = weight.float().permute(2, 1, 0)
    return F.conv1d(x.float().transpose(1, 2), weight, bias, dilation=dilation).transpose(1, 2)


@pytest.mark.parametrize(("taps", "dilation"), [(1, 1), (3, 1), (3, 5), (11, 3)])
@pytest.mark.parametrize("n", [5, 70])
def test_a_convolution_sees_the_past_that_lies_in_front(taps: int, dilation: int, n: int) -> None:
    x = torch.randn(2, (taps - 1) * dilation + n, 48, device=DEVICE).half()
    weight, bias = torch.randn(taps, 48, 96, device=DEVICE).half(), torch.randn(96, device=DEVICE)
    got = torch.empty(2, n, 96, device=DEVICE)
    assert kernels.convolve(x, weight, bias, dilation=dilation, out=got) is None
    torch.testing.assert_close(got, _convolved(x, weight, bias, dilation), atol=1e-3, rtol=1e-4)


def test_a_convolution_adds_a_residual_and_joins_a_mean() -> None:
    x = torch.randn(2, 9 + 2, 16, device=DEVICE).half()
    weight, bias = torch.randn(3, 16, 32, device=DEVICE).half(), torch.randn(32, device=DEVICE)
    residual, longer = torch.randn(2, 9, 32, device=DEVICE), torch.randn(2, 10, 32, device=DEVICE)
    sum_of_both = _convolved(x, weight, bias) + residual
    got = longer.clone()
    kernels.convolve(x, weight, bias, residual=residual, out=got[:, 1:], scale=0.5, add=True)
    torch.testing.assert_close(got[:, 1:], longer[:, 1:] + 0.5 * sum_of_both, atol=1e-4, rtol=1e-4)
    assert got[:, 0].equal(longer[:, 0])
    kernels.convolve(x, weight, bias, residual=residual, out=residual)
    torch.testing.assert_close(residual, sum_of_both, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("snake", [True, False])
def test_the_next_convolution_gets_the_activated_result_and_its_past(*, snake: bool) -> None:
    x = torch.randn(3, 75 + 2, 16, device=DEVICE).half()
    weight, bias = torch.randn(3, 16, 32, device=DEVICE).half(), torch.randn(32, device=DEVICE)
    tail = torch.randn(4, 50, 32, device=DEVICE).half()
    alpha = torch.rand(32, device=DEVICE) + 0.5 if snake else None
    slots = torch.tensor([3, 0, 1], device=DEVICE)
    then = kernels.Activation(tail, alpha, 0.1)
    got = kernels.convolve(x, weight, bias, slots=slots, then=then)
    assert got is not None
    result = _convolved(x, weight, bias)
    want = F.leaky_relu(result, 0.1) if alpha is None else _snake(result, alpha)
    assert got[:, :50].equal(tail[slots])
    torch.testing.assert_close(got[:, 50:], want.half(), atol=5e-3, rtol=2e-3)
    assert kernels.activate(result, then, slots=slots)[:, :50].equal(tail[slots])
    torch.testing.assert_close(kernels.activate(result, then, slots=slots)[:, 50:], want.half(), atol=5e-3, rtol=2e-3)


@pytest.mark.parametrize(("c_in", "c_out"), [(32, 32), (64, 16), (16, 128)])
def test_a_stream_in_uneven_pieces_is_convolved_as_a_whole(c_in: int, c_out: int) -> None:
    """Pieces longer and shorter than the past, rows of unequal length, and a row of padding."""
    taps, dilation = 11, 5
    width = (taps - 1) * dilation
    weight, bias = torch.randn(taps, c_in, c_out, device=DEVICE).half(), torch.randn(c_out, device=DEVICE)
    alpha = torch.rand(c_in, device=DEVICE) + 0.5
    stream = torch.randn(2, 90, c_in, device=DEVICE)
    whole = F.pad(_snake(stream, alpha), (0, 0, width, 0)).half()
    want = _convolved(whole, weight, bias, dilation)
    tail = torch.zeros(4, width, c_in, dtype=torch.float16, device=DEVICE)
    slots, done = [3, 0, 1], [0, 0, 0]
    for frames in ((30, 0, 8), (1, 0, 4), (0, 0, 1)):
        lengths = [2 * count for count in frames]
        x = torch.full((3, max(lengths), c_in), 7.0, device=DEVICE)
        for row, length in enumerate(lengths):
            x[row, :length] = stream[row // 2, done[row] : done[row] + length]
        places, out = torch.tensor(slots, device=DEVICE), torch.empty(3, max(lengths), c_out, device=DEVICE)
        extended = kernels.activate(x, kernels.Activation(tail, alpha, 0.0), slots=places)
        kernels.convolve(
            extended, weight, bias, dilation=dilation, out=out,
            tail=tail, slots=places, frames=torch.tensor(frames, device=DEVICE), rate=2,
        )  # fmt: skip
        for row, length in enumerate(lengths):
            end = done[row] + length
            torch.testing.assert_close(out[row, :length], want[row // 2, done[row] : end], atol=2e-2, rtol=2e-3)
            done[row] = end
            if slots[row]:
                kept = whole[row // 2, end : end + width]
                torch.testing.assert_close(tail[slots[row]], kept, atol=2e-3, rtol=2e-3)
    assert not tail[2].any()


def test_an_activation_beyond_the_range_of_fp16_is_its_largest_number_and_no_number_stays_none() -> None:
    x = torch.tensor([1e6, -1e6, float("nan"), float("inf")], device=DEVICE)[None, :, None].expand(1, 4, 16)
    got = kernels.activate(x, kernels.Activation(None, None, 0.5))[0, :, 0].tolist()
    assert got[0] == got[3] == 65504
    assert got[1] == -65504
    assert got[2] != got[2]


@pytest.mark.parametrize("snake", [True, False])
@pytest.mark.parametrize("n", [5, 70])
def test_without_a_past_zeros_lie_on_both_sides_and_beyond_each_rows_end(*, snake: bool, n: int) -> None:
    x = torch.randn(3, n + 2, 16, device=DEVICE).half()
    weight, bias = torch.randn(3, 16, 96, device=DEVICE).half(), torch.randn(96, device=DEVICE)
    alpha = torch.rand(96, device=DEVICE) + 0.5 if snake else None
    count = torch.tensor([n, 3, 0], device=DEVICE)
    then = kernels.Activation(None, alpha, 0.1, padding=25)
    whole = torch.empty(3, n, 96, device=DEVICE)
    got = kernels.convolve(x, weight, bias, out=whole, count=count, then=then)
    result = _convolved(x, weight, bias)
    torch.testing.assert_close(whole, result, atol=1e-3, rtol=1e-4)
    want = F.leaky_relu(result, 0.1) if alpha is None else _snake(result, alpha)
    want = F.pad(torch.where(torch.arange(n, device=DEVICE)[:, None] < count[:, None, None], want, 0), (0, 0, 25, 25))
    assert got is not None
    result[2] = float("nan")  # no number is not carried in from beyond an end
    for one in (got, kernels.activate(result, then, count=count)):
        torch.testing.assert_close(one, want.half(), atol=5e-3, rtol=2e-3)
        assert not one[want == 0].any()


@pytest.mark.parametrize(("kernel", "rate"), [(16, 8), (11, 5), (7, 3), (3, 3), (9, 2)])
def test_a_transposed_convolution_is_one_at_the_lower_rate(kernel: int, rate: int) -> None:
    conv = torch.nn.ConvTranspose1d(4, 6, kernel, rate, padding=(kernel - rate) // 2).requires_grad_(False)
    x = torch.randn(2, 7, 4)
    want = conv(x.transpose(1, 2)).transpose(1, 2)[:, : 7 * rate]
    weight = _transposed(conv, rate)
    reach = len(weight) // 2
    got = _convolved(F.pad(x, (0, 0, reach, reach)), weight, conv.bias.repeat(rate)).reshape(2, -1, 6)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def _streamed(hift: Hift | CausalHift, mel: Tensor, feeds: list[list[int]]) -> list[Tensor]:
    """The sound of each row of ``mel``, fed in pieces of these lengths; the last ends every stream."""
    rows = len(mel)
    cache = hift.new_cache(slots=rows + 2, device=DEVICE)
    slots = torch.tensor([*range(2, rows + 2), 0], device=DEVICE)  # and a row of padding
    cache.reset(slots)
    fed = [0] * rows
    sound: list[list[Tensor]] = [[] for _ in range(rows)]
    for number, lengths in enumerate(feeds):
        final = number == len(feeds) - 1
        n = max(lengths)
        piece = torch.randn(rows + 1, n, 80, device=DEVICE)
        for row, length in enumerate(lengths):
            piece[row, :length] = mel[row, fed[row] : fed[row] + length]
        ends = (slots > 0) & final
        options = {"any_final": final} if isinstance(hift, CausalHift) else {}
        samples = hift(piece, torch.tensor([*lengths, 0], device=DEVICE), slots, cache, ends, **options)
        for row, length in enumerate(lengths):
            begin, end = hift.valid(before=fed[row], frames=length, final=final)
            sound[row].append(samples[row, begin:end])
            fed[row] += length
    return [torch.cat(pieces) for pieces in sound]


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes its time by the tile: few of them, and none larger than what it holds."""

    def large(rows: int, n: int, c_in: int, c_out: int) -> kernels.Tile:
        positions = min(max(64, 1 << n.bit_length()), 1024)  # 64: the first tile carries the past of the next layer
        return kernels.Tile(positions, c_out & -c_out, c_in & -c_in, warps=4, stages=3)

    if not torch.cuda.is_available():
        monkeypatch.setattr(kernels, "choose_tile", large)


def _small(kind: type[Hift | CausalHift]) -> Hift | CausalHift:
    config = HiftConfig(
        causal=kind is CausalHift,
        base_channels=128,
        f0_channels=16,
        resblock_kernels=(3, 5),
        resblock_dilations=(1, 5),
        source_resblock_kernels=(3, 3, 5),
    )
    hift = kind(config, noise_seconds=2).eval()
    for name, parameter in hift.named_parameters():
        if name.endswith("alpha"):
            parameter.data += torch.rand_like(parameter)
    return hift.to(DEVICE)


@pytest.mark.usefixtures("_quick")
@torch.inference_mode()
def test_the_fused_causal_vocoder_streams_the_sound_of_the_plain_one() -> None:
    hift = _small(CausalHift)
    mel = torch.randn(2, 6, 80, device=DEVICE)
    whole = _streamed(hift, mel, [[6, 6]])
    got = _streamed(fuse(hift), mel, [[4, 3], [1, 2], [1, 1]])
    for one, other in zip(got, whole, strict=True):
        assert one.shape == other.shape == (6 * 480,)
        assert (one - other).norm() < 1e-3 * other.norm()


@pytest.mark.usefixtures("_quick")
@torch.inference_mode()
def test_the_fused_symmetric_vocoder_streams_the_sound_of_the_plain_one() -> None:
    """In the same pieces: these are heard in the splices."""
    hift = _small(Hift)
    mel = torch.randn(2, 10, 80, device=DEVICE)
    feeds = [[9, 8], [1, 0]]
    plain, got = _streamed(hift, mel, feeds), _streamed(fuse(hift), mel, feeds)
    for one, other, frames in zip(got, plain, (10, 8), strict=True):
        assert one.shape == other.shape == (frames * 480,)
        assert (one - other).norm() < 1e-3 * other.norm()


def test_a_vocoder_too_narrow_for_products_stays_plain() -> None:
    hift = Hift(HiftConfig(causal=False, base_channels=64, f0_channels=16), noise_seconds=1)
    assert fuse(hift) is hift
