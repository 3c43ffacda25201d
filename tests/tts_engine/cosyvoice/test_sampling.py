"""RAS: its statistics against the distribution that its rules define, and its edges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.tts_engine.cosyvoice.models.goldens import llm_config
from tts_engine.cosyvoice.models.config import SamplingConfig
from tts_engine.cosyvoice.sampling import push, ras, stop_mask, uniforms

GOLDENS = Path(__file__).parents[2] / "goldens/cosyvoice"
CONFIG = SamplingConfig()


def expected(logits: Tensor, history: list[int]) -> Tensor:
    """The distribution of one RAS draw, worked out entry by entry."""
    p = logits.double().softmax(-1)
    order = p.argsort(descending=True).tolist()
    kept: list[int] = []
    mass = 0.0
    for i in order:
        if mass < CONFIG.top_p and len(kept) < CONFIG.top_k:
            kept.append(i)
            mass += float(p[i])
    out = torch.zeros_like(p)
    for i in kept:
        share = p[i] / p[kept].sum()
        if i in history[-CONFIG.window :]:
            others = p.clone()
            others[i] = 0
            out += share * others / others.sum()
        else:
            out[i] += share
    return out


@pytest.mark.parametrize("history", [[], [3, 7, 3], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 39]])
@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_draws_follow_the_distribution(history: list[int], scale: float) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(40, generator=generator) * scale
    rows = 20_000
    window = torch.tensor([([-1] * 10 + history)[-12:]]).expand(rows, -1)
    uniforms = torch.rand(rows, 2, generator=generator, dtype=torch.float64)
    drawn, _ = ras(logits.expand(rows, -1), window, uniforms, CONFIG)
    want = expected(logits, history) * rows
    seen = torch.bincount(drawn, minlength=40).double()
    assert seen[want == 0].sum() == 0
    common = want >= 5
    chi_square = ((seen - want)[common].square() / want[common]).sum().item()
    freedom = int(common.sum()) - 1
    # Mean and deviation of chi-square are k and sqrt(2 k); five deviations is one false alarm in millions.
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_wrong_top_p_would_be_noticed() -> None:
    """The bound of the test above is tight enough to see another top_p."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(40, generator=generator) * 2
    uniforms = torch.rand(20_000, 2, generator=generator, dtype=torch.float64)
    window = torch.full((20_000, 10), -1)
    drawn, _ = ras(logits.expand(20_000, -1), window, uniforms, SamplingConfig(top_p=0.9))
    want = expected(logits, []) * 20_000
    assert torch.bincount(drawn, minlength=40)[want == 0].sum() > 0


def test_masked_ids_are_never_drawn() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2000, 30, generator=generator)
    logits[:, 20:] = float("-inf")
    uniforms = torch.rand(2000, 2, generator=generator, dtype=torch.float64)
    uniforms[0] = 1 - 2**-53
    history = torch.randint(0, 20, (2000, 10), generator=generator)
    drawn, draws = ras(logits, history, uniforms, CONFIG)
    assert drawn.max() < 20
    assert set(draws.tolist()) == {1, 2}


def test_minimum_length_masks_every_end_but_upstreams_only_one() -> None:
    config = llm_config(3)
    assert stop_mask(config).nonzero().flatten().tolist() == list(config.stop_ids)
    assert stop_mask(config, upstream=True).nonzero().flatten().tolist() == [config.speech_token_size]
    assert not stop_mask(config, upstream=True)[config.eos]
    assert stop_mask(llm_config(2), upstream=True)[llm_config(2).eos]


def test_lengths_follow_the_text() -> None:
    assert CONFIG.lengths(17) == (34, 340)


def test_history_shifts() -> None:
    history = push(torch.tensor([[-1, -1, 4], [1, 2, 3]]), torch.tensor([5, 6]))
    assert history.tolist() == [[-1, 4, 5], [2, 3, 6]]


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_picks_match_upstream(version: str) -> None:
    io = load_file(GOLDENS / version / "io_llm.safetensors")
    drawn, draws = ras(io["ras.scores"], io["ras.history"], io["ras.uniforms"], CONFIG)
    assert drawn.tolist() == io["ras.token"].tolist()
    assert draws.tolist() == io["ras.draws_used"].tolist()
    assert set(draws.tolist()) == {1, 2}  # both branches were exercised


def test_equal_scores_keep_the_order_of_their_ids() -> None:
    """Upstream sorts stably, so of a hundred equal ids the nucleus holds the first 25."""
    draws = torch.stack([torch.arange(25, dtype=torch.float64) / 25 + 0.01, torch.zeros(25).double()], dim=1)
    drawn, _ = ras(torch.zeros(25, 100), torch.full((25, 10), -1), draws, CONFIG)
    assert drawn.tolist() == list(range(25))


def test_a_draw_of_almost_one_takes_a_possible_id() -> None:
    scores = torch.full((1, 50), float("-inf"))
    scores[0, :3] = torch.tensor([1.0, 0.5, 0.2])
    history = torch.tensor([[0] + [-1] * 9])
    draws = torch.tensor([[0.0, 1.0 - 2**-53]], dtype=torch.float64)
    assert ras(scores, history, draws, CONFIG)[0].tolist() == [2]


def test_the_only_possible_id_stands_although_it_repeats() -> None:
    scores = torch.full((1, 50), float("-inf"))
    scores[0, 7] = 0.0
    drawn, draws = ras(scores, torch.full((1, 10), 7), torch.zeros(1, 2, dtype=torch.float64), CONFIG)
    assert (drawn.tolist(), draws.tolist()) == ([7], [1])


def test_draws_depend_on_seed_and_step_alone_and_are_uniform() -> None:
    seeds = torch.tensor([0, 1, -1, 2**63 - 1]).repeat_interleave(5000)
    u = uniforms(seeds, torch.arange(5000).repeat(4))
    assert float(u.min()) >= 0.0 and float(u.max()) < 1.0 and u.dtype == torch.float64
    assert torch.equal(u[7:8], uniforms(seeds[7:8], torch.tensor([7])))
    counts = torch.histc(u.float(), bins=20, min=0.0, max=1.0).double()
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    first, second = u[:, 0].numpy(), u[:, 1].numpy()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[:4999], first[1:5000])[0, 1]) < 0.05
    assert len(set(u[::5000, 0].tolist())) == 4
