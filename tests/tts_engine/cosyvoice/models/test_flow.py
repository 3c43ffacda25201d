"""The flows against upstream's numbers: one-shot, in chunks with caches, and in batches."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.tts_engine.cosyvoice.models.goldens import VERSIONS, deviation, flow_config, frames, load, read_json, tensors
from tts_engine.cosyvoice.models.config import FlowV2Config, FlowV3Config
from tts_engine.cosyvoice.models.flow import Flow, FlowCache, FlowRows, place_prompt
from tts_engine.cosyvoice.models.flow_v2 import FlowV2
from tts_engine.cosyvoice.models.flow_v3 import FlowV3
from tts_engine.cosyvoice.models.streaming import Span

PROMPT = 37
"""Prompt tokens of the goldens; not a multiple of the chunk, as upstream allows."""
CHUNK = 25


@functools.cache
def flow(version: int) -> Flow:
    config = flow_config(version)
    network: Flow
    if isinstance(config, FlowV2Config):
        network = FlowV2(config)
    else:
        assert isinstance(config, FlowV3Config)
        network = FlowV3(config)
    load(network, version, "flow")
    network.prepare()
    return network


def sequence(version: int, tokens: int) -> Tensor:
    io = tensors(version, "io_flow")
    return torch.cat([io["prompt_token"], io["token"][:, :tokens]], dim=1).long()


def one(value: int) -> Tensor:
    return torch.tensor([value])


@pytest.fixture(params=VERSIONS, ids=["v2", "v3"])
def version(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


def test_noise_is_upstreams(version: int) -> None:
    noise = flow(version).noise
    want = [-1.1258398, -1.1523602, -0.2505786, -0.4338788, 0.8487104]
    assert noise[:5, 0].tolist() == pytest.approx(want, abs=1e-6)
    assert noise.double().sum().item() == pytest.approx(-1291.2013939, abs=1e-3)


def test_schedule_is_upstreams(version: int) -> None:
    assert deviation(flow(version).times, tensors(version, "io_flow")["t_span"][:10]) < 1e-6


def test_speaker_vector(version: int) -> None:
    io = tensors(version, "io_flow")
    assert deviation(flow(version).speaker(io["embedding"]), io["spk"]) < 1e-6


@pytest.mark.parametrize(
    ("name", "streaming", "final"),
    [("full", False, True), ("stream_final", True, True), ("stream_nonfinal", True, False)],
)
def test_encoder_of_v2(name: str, streaming: bool, final: bool) -> None:
    network, io = flow(2), tensors(2, "io_flow")
    assert isinstance(network, FlowV2)
    tokens = sequence(2, 60)
    rendered = tokens.shape[1] - (0 if final else 3)
    span = Span.whole(one(rendered), chunk=CHUNK if streaming else None)
    tokens, valid = F.pad(tokens, (0, rendered + 3 - tokens.shape[1])), one(tokens.shape[1])
    hidden = network.encoder(network.input_embedding(tokens), valid, span, None)
    assert deviation(hidden, io[f"encoder.{name}"]) < 1e-4
    assert deviation(network.condition(tokens, valid, span), io[f"mu.{name}"]) < 1e-4


@pytest.mark.parametrize("final", [False, True])
def test_condition_of_v3(final: bool) -> None:
    tokens = sequence(3, 60)
    rendered = tokens.shape[1] - (0 if final else 3)
    span = Span.whole(one(rendered), chunk=None)
    padded = F.pad(tokens, (0, rendered + 3 - tokens.shape[1]))
    mu = flow(3).condition(padded, one(tokens.shape[1]), span)
    assert deviation(mu, tensors(3, "io_flow")[f"mu.{'final' if final else 'nonfinal'}"]) < 1e-5


@pytest.mark.parametrize("streaming", [False, True])
def test_estimator(version: int, streaming: bool) -> None:
    io = tensors(version, "io_flow")
    network = flow(version)
    out = network.estimator(
        frames(io["est.x"]),
        frames(io["est.mu"]),
        io["est.spks"],
        frames(io["est.cond"]),
        network.estimator.modulations(io["est.t"]),
        Span.whole(torch.tensor([130, 130]), chunk=50 if streaming else None),
    )
    assert deviation(frames(out), io[f"est.out.streaming={streaming}"]) < 1e-4


@pytest.mark.parametrize(
    ("name", "streaming", "final"),
    [
        ("mel.offline", False, True),
        ("mel.offline_nonfinal", False, False),
        ("mel.stream_final", True, True),
        ("mel.stream_nonfinal", True, False),
    ],
)
def test_mel(version: int, name: str, streaming: bool, final: bool) -> None:
    io = tensors(version, "io_flow")
    mel = flow(version).render(
        sequence(version, 60),
        one(PROMPT + 60),
        io["prompt_feat"],
        one(2 * PROMPT),
        io["embedding"],
        streaming=streaming,
        final=final,
    )
    assert deviation(frames(mel[:, 2 * PROMPT :]), io[name]) < 2e-4


class Calls:
    """Drives ``Flow.advance`` as an engine would: slots, blocks and batches of several calls."""

    def __init__(self, network: Flow, version: int, *, slots: int = 8, blocks: int = 40) -> None:
        self.network, self.io = network, tensors(version, "io_flow")
        self.cache = FlowCache(network, slots=slots, blocks=blocks)
        self.free = list(range(blocks - 1, 0, -1))
        self.tables: dict[int, list[int]] = {}
        self.done: dict[int, int] = {}

    def begin(self, slot: int) -> None:
        self.cache.reset(one(slot))
        self.tables[slot], self.done[slot] = [], 0

    def fork(self, source: int, slot: int) -> None:
        """Share the whole chunks of another call."""
        self.cache.copy(one(source), one(slot))
        self.tables[slot], self.done[slot] = list(self.tables[source]), self.done[source]

    def advance(self, feeds: dict[int, tuple[Tensor, int]], *, padding_rows: int = 0) -> dict[int, Tensor]:
        """``{slot: (all tokens known so far (n,), tokens to render up to)}`` to the new mel frames of each."""
        slots = [*feeds, *[0] * padding_rows]
        width = max(end - self.done[slot] for slot, (_, end) in feeds.items())
        tokens = torch.zeros(len(slots), width + 3, dtype=torch.long)
        valid, start, length = (torch.zeros(len(slots), dtype=torch.long) for _ in range(3))
        for row, (slot, (known, end)) in enumerate(feeds.items()):
            first = self.done[slot]
            given = known[first : end + 3]
            tokens[row, : len(given)], valid[row] = given, len(given)
            start[row], length[row] = first, end - first
            while len(self.tables[slot]) * CHUNK < end:
                self.tables[slot].append(self.free.pop())
        blocks = torch.zeros(len(slots), max(len(self.tables[s]) for s in feeds) + 1, dtype=torch.long)
        for row, slot in enumerate(feeds):
            blocks[row, : len(self.tables[slot])] = torch.tensor(self.tables[slot])
        rows = FlowRows(slots=torch.tensor(slots), blocks=blocks, start=start, length=length)
        prompt = self.io["prompt_feat"].expand(len(slots), -1, -1)
        cond = place_prompt(prompt, torch.full_like(start, 2 * PROMPT), start, 2 * width)
        speaker = self.network.speaker(self.io["embedding"]).expand(len(slots), -1)
        mel = self.network.advance(tokens, valid, cond, speaker, rows, self.cache)
        out = {}
        for row, (slot, (_, end)) in enumerate(feeds.items()):
            out[slot] = mel[row, : 2 * (end - self.done[slot])]
            self.done[slot] = end
        return out


def test_chunks_with_caches_equal_one_pass(version: int) -> None:
    calls = Calls(flow(version), version)
    calls.begin(1)
    tokens = sequence(version, 200)[0]
    ends = [25, 50, 75, 150, 225, 237]  # one chunk, several at once, and a last one inside a chunk
    mel = torch.cat([calls.advance({1: (tokens, end)})[1] for end in ends])
    assert deviation(mel[2 * PROMPT :].T[None], tensors(version, "io_flow")["mel.stream_final_all"]) < 1e-5


def test_each_chunk_needs_three_more_tokens_and_no_more(version: int) -> None:
    tokens = sequence(version, 200)[0]
    want = tensors(version, "io_flow")["mel.stream_final_all"][0].T
    calls = Calls(flow(version), version)
    calls.begin(1)
    calls.advance({1: (tokens[:53], 50)})
    assert deviation(calls.advance({1: (tokens[:78], 75)})[1], want[100 - 2 * PROMPT : 150 - 2 * PROMPT]) < 1e-5


def test_a_call_alone_equals_the_call_in_a_changing_batch(version: int) -> None:
    tokens = sequence(version, 200)[0]
    mine, other = tokens[:110], tokens.flip(0)
    ends = (25, 50, 75, 100, 110)
    alone = Calls(flow(version), version)
    alone.begin(1)
    want = torch.cat([alone.advance({1: (mine, end)})[1] for end in ends])

    batch = Calls(flow(version), version)
    for slot in (1, 2, 3, 4):
        batch.begin(slot)
    company: list[dict[int, tuple[Tensor, int]]] = [
        {},
        {2: (other, 50)},
        {3: (other, 100), 2: (other, 75)},
        {4: (other, 12), 2: (other, 150)},
        {3: (other, 125)},
    ]
    got = [
        batch.advance({**others, 1: (mine, end)}, padding_rows=end % 3)[1]
        for others, end in zip(company, ends, strict=True)
    ]
    assert deviation(torch.cat(got), want) < 1e-5


def test_calls_share_the_chunks_of_a_prompt(version: int) -> None:
    tokens = sequence(version, 200)[0]
    calls = Calls(flow(version), version)
    calls.begin(1)
    calls.advance({1: (tokens, 25)})
    shared = calls.cache.keys.data[:, :, calls.tables[1][0] * 20 : calls.tables[1][0] * 20 + 20].clone()
    for slot in (2, 3):
        calls.fork(1, slot)
    out = calls.advance({2: (tokens, 75), 3: (tokens, 75)})
    want = tensors(version, "io_flow")["mel.stream_final_all"][0].T[: 150 - 2 * PROMPT]
    for slot in (2, 3):
        assert deviation(out[slot][2 * PROMPT - 50 :], want) < 1e-5
    now = calls.cache.keys.data[:, :, calls.tables[1][0] * 20 : calls.tables[1][0] * 20 + 20]
    assert torch.equal(now, shared)


def test_rows_may_be_at_different_euler_steps(version: int) -> None:
    """Two calls, one step apart, in one estimator batch: as each of them alone."""
    network = flow(version)
    tokens = sequence(version, 50)
    io = tensors(version, "io_flow")
    cache = FlowCache(network, slots=4, blocks=8)
    rows = FlowRows(
        slots=torch.tensor([1, 2]),
        blocks=torch.tensor([[1], [2]]),
        start=torch.zeros(2, dtype=torch.long),
        length=torch.tensor([25, 25]),
    )
    two = torch.cat([tokens[:, :28], tokens[:, 30:58]])
    mu = network.condition(two, torch.tensor([28, 28]), cache.condition_span(rows))
    cond = place_prompt(io["prompt_feat"].expand(2, -1, -1), torch.tensor([74, 74]), rows.start, 50)
    speaker = network.speaker(io["embedding"]).expand(2, -1)
    x = network.start_state(rows.start, 50)

    def step_alone(x: Tensor, row: int, k: int) -> Tensor:
        span = Span.whole(torch.tensor([50, 50]), chunk=50)
        only = slice(row, row + 1)
        return network.step(x, mu[only], speaker[only], cond[only], one(k), span)

    behind = x[1:]
    ahead = step_alone(x[:1], 0, 0)
    step = torch.tensor([1, 0])
    got = network.step(torch.cat([ahead, behind]), mu, speaker, cond, step, cache.estimator_span(rows, step))
    assert deviation(got[:1], step_alone(ahead, 0, 1)) < 1e-5
    assert deviation(got[1:], step_alone(behind, 1, 0)) < 1e-5


def test_batched_one_pass_equals_rows_alone(version: int) -> None:
    io = tensors(version, "io_flow")
    network = flow(version)
    tokens = sequence(version, 200)
    lengths = torch.tensor([237, 110, 61])
    batch = torch.stack([tokens[0].where(torch.arange(237) < n, torch.zeros(())).long() for n in lengths])
    prompt, embedding = io["prompt_feat"].expand(3, -1, -1), io["embedding"].expand(3, -1)
    for streaming, final in ((False, True), (True, False)):
        mel = network.render(batch, lengths, prompt, torch.full((3,), 74), embedding, streaming=streaming, final=final)
        for row, n in enumerate(lengths.tolist()):
            alone = network.render(
                tokens[:, :n], one(n), prompt[:1], one(74), embedding[:1], streaming=streaming, final=final
            )
            assert deviation(mel[row : row + 1, : alone.shape[1]], alone) < 1e-5


@pytest.mark.parametrize("run", ["hop25", "doubling"])
def test_chunks_of_a_streamed_utterance(version: int, run: str) -> None:
    """Upstream's chunks: from the caches, and the last one by full attention over everything."""
    io, stream = tensors(version, "io_flow"), tensors(version, "io_stream")
    network = flow(version)
    table = read_json(version, "meta.json")[f"stream_{run}"]["chunks"]
    tokens = sequence(version, table[-1]["tokens_given"])[0]
    calls = Calls(network, version)
    calls.begin(1)
    for chunk in table[:-1]:
        end = PROMPT + chunk["tokens_given"] - 3
        mel = calls.advance({1: (tokens[: end + 3], end)})[1]
        want = stream[f"{run}.mel.{chunk['i']}"]
        assert deviation(mel[-want.shape[2] :].T[None], want) < 1e-5
    last = network.render(
        tokens[None], one(len(tokens)), io["prompt_feat"], one(74), io["embedding"], streaming=False, final=True
    )
    want = stream[f"{run}.mel.{table[-1]['i']}"]
    assert deviation(frames(last)[:, :, -want.shape[2] :], want) < 2e-4
    last = whole(network, tokens, io["prompt_feat"], io["embedding"])
    assert deviation(frames(last)[:, :, -want.shape[2] :], want) < 2e-4


def whole(network: Flow, tokens: Tensor, prompt_mel: Tensor, embedding: Tensor) -> Tensor:
    """The same between rows of another length and of padding."""
    n = len(tokens) + 13
    length = torch.tensor([40, len(tokens), 0])
    padded = torch.stack([F.pad(tokens[:40], (0, n + 3 - 40)), F.pad(tokens, (0, 16)), torch.zeros(n + 3)]).long()
    cond = place_prompt(prompt_mel.expand(3, -1, -1), torch.full((3,), prompt_mel.shape[1]), 0 * length, 2 * n)
    mel = network.whole(padded, length, cond, network.speaker(embedding).expand(3, -1), length)
    return mel[1:2, : 2 * len(tokens)]
