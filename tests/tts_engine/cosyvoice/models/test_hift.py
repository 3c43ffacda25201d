"""The vocoders against upstream's numbers: one call, spliced chunks (v2) and stateful chunks (v3)."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor
from torch.nn.utils.parametrizations import weight_norm

from tests.tts_engine.cosyvoice.models.goldens import deviation, frames, hift_config, read_json, tensors
from tts_engine.cosyvoice.models.folding import fold_weight_norm
from tts_engine.cosyvoice.models.hift import Hift
from tts_engine.cosyvoice.models.hift_causal import CausalHift, VocoderCache, source_noise


@functools.cache
def symmetric() -> Hift:
    network = Hift(hift_config(2))
    network.load_state_dict(fold_weight_norm(tensors(2, "hift")))
    return network.eval().requires_grad_(False)


@functools.cache
def causal() -> CausalHift:
    network = CausalHift(hift_config(3), noise_seconds=1)
    network.load_state_dict(fold_weight_norm(tensors(3, "hift"), fp64="f0_predictor."))
    network.noise = tensors(3, "io_hift")["noise_table"][0]
    return network.eval().requires_grad_(False)


@pytest.mark.parametrize(("version", "fp64"), [(2, ""), (3, "f0_predictor.")])
def test_weights_are_folded_bit_for_bit_as_torch_folds_them(version: int, fp64: str) -> None:
    """Upstream keeps the pair and lets torch fold it at each call, in the precision that the module has."""
    state = tensors(version, "hift")
    folded = fold_weight_norm(state, fp64=fp64)
    modules = [name.removesuffix(".parametrizations.weight.original1") for name in state if name.endswith("original1")]
    assert any(name.startswith("f0_predictor.") for name in modules)
    for name in modules:
        gain, direction = (state[f"{name}.parametrizations.weight.original{i}"] for i in (0, 1))
        plain = torch.nn.Conv1d(1, 1, 1)
        plain.weight = torch.nn.Parameter(direction)
        module = weight_norm(plain)
        weights = module.parametrizations.weight
        weights.original0.data, weights.original1.data = gain, direction
        want = module.double().weight if fp64 and name.startswith(fp64) else module.weight
        assert torch.equal(folded[f"{name}.weight"], want)


def rms(got: Tensor, want: Tensor) -> float:
    return float((got - want).square().mean().sqrt())


def noise_of(frame_count: int, kind: str) -> Tensor:
    """Golden noise of ``frame_count`` frames: the table repeated from the call's first sample, or zeros."""
    table = tensors(2, "io_hift")["noise_table"]
    noise = table.repeat(1, -(-frame_count * 480 // table.shape[1]), 1)[:, : frame_count * 480]
    return noise if kind == "table" else torch.zeros_like(noise)


def one(value: int) -> Tensor:
    return torch.tensor([value])


def whole(mel: Tensor, kind: str = "table") -> tuple[Tensor, Tensor]:
    """Samples and excitation of one call by itself."""
    count = one(mel.shape[1])
    source = symmetric().source(mel, count, noise_of(mel.shape[1], kind))
    return symmetric().decode(mel, count, source), source


@pytest.mark.parametrize("kind", ["zero", "table"])
def test_v2_source_body_and_whole(kind: str) -> None:
    io, hift = tensors(2, "io_hift"), symmetric()
    mel = frames(io["mel"])
    assert deviation(hift.f0_predictor(io["mel"], torch.ones(1, 1, 40)), io["f0"]) < 1e-3
    wav, source = whole(mel, kind)
    assert deviation(source[:, None], io[f"source.{kind}"]) < 1e-3
    assert deviation(wav, io[f"wav.{kind}"]) < 1e-3
    assert rms(wav, io[f"wav.{kind}"]) < 1e-4
    assert deviation(hift.decode(mel, one(40), io[f"source.{kind}"][:, 0]), io[f"decode_only.{kind}"]) < 1e-5


def test_v2_cached_source_replaces_the_beginning() -> None:
    io, hift = tensors(2, "io_hift"), symmetric()
    mel = frames(io["mel"])
    source = torch.cat([io["cache_source"][:, 0], whole(mel, "zero")[1][:, 3840:]], dim=1)
    assert deviation(hift.decode(mel, one(40), source), io["wav.cached_source"]) < 1e-3


class SplicedStreams:
    """Drives ``Hift`` as an engine would."""

    def __init__(self, slots: int = 6) -> None:
        self.cache = symmetric().new_cache(slots=slots)
        self.fed = dict.fromkeys(range(slots), 0)

    def feed(self, mels: dict[int, tuple[Tensor, bool]], *, padding_rows: int = 0) -> dict[int, Tensor]:
        """``{slot: (new frames (n, 80), final)}`` to new samples."""
        rows = len(mels) + padding_rows
        mel = torch.zeros(rows, max(len(new) for new, _ in mels.values()), 80)
        length, slots = torch.zeros(rows, dtype=torch.long), torch.zeros(rows, dtype=torch.long)
        for row, (slot, (new, _)) in enumerate(mels.items()):
            mel[row, : len(new)], length[row], slots[row] = new, len(new), slot
        samples = symmetric()(mel, length, slots, self.cache, torch.zeros(rows, dtype=torch.bool))
        out = {}
        for row, (slot, (new, last)) in enumerate(mels.items()):
            begin, end = Hift.valid(before=self.fed[slot], frames=len(new), final=last)
            out[slot] = samples[row, begin:end]
            self.fed[slot] += len(new)
        return out


@pytest.mark.parametrize("run", ["hop25", "doubling"])
def test_v2_stream_is_upstreams(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = tensors(2, "io_stream")
    table = read_json(2, "meta.json")[f"stream_{run}"]["chunks"]
    streams = SplicedStreams()
    noise = tensors(2, "io_hift")["noise_table"][0]
    for chunk in table:
        mel = frames(stream[f"{run}.mel.{chunk['i']}"])[0]
        # Ours is indexed from the start of the stream, the golden's from the start of each chunk.
        begin = max(streams.fed[1] - 8, 0) * 480
        monkeypatch.setitem(symmetric()._buffers, "noise", noise.roll(begin, 0))
        wav = streams.feed({1: (mel, chunk is table[-1])})[1][None]
        want = stream[f"{run}.wav.{chunk['i']}"]
        assert deviation(wav, want) < 5e-3
        assert rms(wav, want) < 5e-4


def test_v2_a_stream_alone_equals_the_stream_in_a_changing_batch() -> None:
    stream = tensors(2, "io_stream")
    mine = torch.cat([frames(stream[f"hop25.mel.{i}"])[0] for i in range(4)])
    other = mine.flip(0)
    alone, companion = SplicedStreams(), SplicedStreams()
    cuts = [(0, 50), (50, 100), (100, 150), (150, 183)]
    want = torch.cat([alone.feed({1: (mine[a:b], b == 183)})[1] for a, b in cuts])
    others = torch.cat([companion.feed({2: (other[a:b], b == 92)})[2] for a, b in [(0, 30), (30, 80), (80, 92)]])
    batch = SplicedStreams()
    batch.feed({1: (other[:50], False)})
    batch.cache.reset(one(1))
    batch.fed[1] = 0
    got = [
        batch.feed({1: (mine[:50], False)}, padding_rows=1),
        batch.feed({2: (other[:30], False), 1: (mine[50:100], False)}),
        batch.feed({1: (mine[100:150], False), 3: (other[:4], True), 2: (other[30:80], False)}, padding_rows=2),
        batch.feed({2: (other[80:92], True), 1: (mine[150:183], True)}),
    ]
    # Its f0 is fp32: another batch size rounds otherwise, and the phase integrates that.
    assert deviation(torch.cat([out[1] for out in got]), want) < 1e-3
    assert deviation(torch.cat([out[2] for out in got if 2 in out]), others) < 1e-3


def test_v2_whole_utterance() -> None:
    flow, stream = tensors(2, "io_flow"), tensors(2, "io_stream")
    mel = frames(flow["mel.offline"])
    assert deviation(whole(mel)[0], stream["offline.wav"]) < 5e-3


class Streams:
    """Drives ``CausalHift`` as an engine would."""

    def __init__(self, slots: int = 6) -> None:
        self.cache = VocoderCache(causal(), slots=slots)
        self.fed = dict.fromkeys(range(slots), 0)

    def feed(self, mels: dict[int, tuple[Tensor, bool]], *, padding_rows: int = 0) -> dict[int, Tensor]:
        """``{slot: (new frames (n, 80), final)}`` to new samples."""
        width = max(len(mel) for mel, _ in mels.values())
        rows = len(mels) + padding_rows
        mel = torch.zeros(rows, width, 80)
        length, slots = torch.zeros(rows, dtype=torch.long), torch.zeros(rows, dtype=torch.long)
        final = torch.zeros(rows, dtype=torch.bool)
        for row, (slot, (new, last)) in enumerate(mels.items()):
            mel[row, : len(new)], length[row], slots[row], final[row] = new, len(new), slot, last
        samples = causal()(mel, length, slots, self.cache, final, any_final=bool(final.any()))
        out = {}
        for row, (slot, (new, last)) in enumerate(mels.items()):
            begin, end = CausalHift.valid(before=self.fed[slot], frames=len(new), final=last)
            out[slot] = samples[row, begin:end]
            self.fed[slot] += len(new)
        return out

    def run(self, slot: int, mel: Tensor, cuts: list[int]) -> Tensor:
        """A whole stream, cut after these frame counts."""
        starts = [0, *cuts[:-1]]
        return torch.cat(
            [self.feed({slot: (mel[a:b], b == cuts[-1])})[slot] for a, b in zip(starts, cuts, strict=True)]
        )


@pytest.mark.parametrize("kind", ["zero", "table"])
def test_v3_whole_is_upstreams(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    io = tensors(3, "io_hift")
    if kind == "zero":
        monkeypatch.setitem(causal()._buffers, "noise", torch.zeros(480, 9))
    mel = frames(io["mel"])[0]
    wav = Streams().run(1, mel, [40])
    assert deviation(wav[None], io[f"wav.{kind}.final"]) < 1e-5
    begun = Streams().feed({1: (mel, False)})[1]
    want = io[f"wav.{kind}.nonfinal"]
    assert len(begun) > want.shape[1]  # upstream waits for eight frames, four are enough
    assert deviation(begun[None, : want.shape[1]], want) < 1e-5


@pytest.mark.parametrize("cuts", [[12, 17, 30, 40], [2, 4, 5, 6, 40], [39, 40]])
def test_v3_chunks_equal_one_pass(cuts: list[int]) -> None:
    mel = frames(tensors(3, "io_hift")["mel"])[0]
    assert deviation(Streams().run(1, mel, cuts), Streams().run(1, mel, [40])) < 1e-5


@pytest.mark.parametrize("run", ["hop25", "doubling"])
def test_v3_stream_is_upstreams(run: str) -> None:
    stream = tensors(3, "io_stream")
    count = len(read_json(3, "meta.json")[f"stream_{run}"]["chunks"])
    mels = [frames(stream[f"{run}.mel.{i}"])[0] for i in range(count)]
    cuts = torch.tensor([len(mel) for mel in mels]).cumsum(0).tolist()
    got = Streams().run(1, torch.cat(mels), cuts)[None]
    want = torch.cat([stream[f"{run}.wav.{i}"] for i in range(count)], dim=1)
    assert deviation(got, want) < 1e-3
    assert rms(got, want) < 1e-4


def test_v3_a_stream_alone_equals_the_stream_in_a_changing_batch() -> None:
    stream = tensors(3, "io_stream")
    mine = torch.cat([frames(stream[f"hop25.mel.{i}"])[0] for i in range(4)])
    other = mine.flip(0)
    want = Streams().run(1, mine, [50, 100, 150, 220])
    others = Streams().run(1, other, [30, 80, 90])
    batch = Streams()
    got = [
        batch.feed({1: (mine[:50], False)}, padding_rows=1),
        batch.feed({2: (other[:30], False), 1: (mine[50:100], False)}),
        batch.feed({1: (mine[100:150], False), 3: (other[:20], True), 2: (other[30:80], False)}, padding_rows=2),
        batch.feed({2: (other[80:90], True), 1: (mine[150:], True)}),
    ]
    assert deviation(torch.cat([out[1] for out in got]), want) < 1e-5
    assert deviation(torch.cat([out[2] for out in got if 2 in out]), others) < 1e-5
    batch.cache.reset(torch.tensor([1]))
    batch.fed[1] = 0
    assert deviation(batch.run(1, mine, [50, 100, 150, 220]), want) < 1e-5


def test_v3_noise_table_is_upstreams() -> None:
    assert source_noise(seconds=1)[0, :3].tolist() == pytest.approx([0.9228260, 0.4774475, 0.8270518], abs=1e-6)
