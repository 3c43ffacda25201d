"""The sampler alone, on the CPU; ``test_vllm_engine`` runs it inside vLLM."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from tts_engine.cosyvoice.vllm_plugin.ras import WINDOW, RasState, ras_pick, uniforms  # noqa: E402

GOLDENS = Path(__file__).parents[3] / "goldens/cosyvoice"
CPU = torch.device("cpu")


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_picks_match_the_golden(version: str) -> None:
    io = load_file(GOLDENS / version / "io_llm.safetensors")
    picked = ras_pick(io["ras.scores"], io["ras.history"][:, -WINDOW:], io["ras.uniforms"])
    assert picked.tolist() == io["ras.token"].tolist()
    assert set(io["ras.draws_used"].tolist()) == {1, 2}  # both branches were exercised


def test_a_draw_of_almost_one_takes_a_possible_id() -> None:
    scores = torch.full((1, 50), float("-inf"))
    scores[0, :3] = torch.tensor([1.0, 0.5, 0.2])
    ring = torch.tensor([[0] + [-1] * 9])
    draws = torch.tensor([[0.0, 1.0 - 2**-53]], dtype=torch.float64)
    assert ras_pick(scores, ring, draws).tolist() == [2]


def test_only_possible_id_stands_although_it_repeats() -> None:
    scores = torch.full((1, 50), float("-inf"))
    scores[0, 7] = 0.0
    assert ras_pick(scores, torch.full((1, 10), 7), torch.zeros(1, 2, dtype=torch.float64)).tolist() == [7]


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


def picked(logits: torch.Tensor) -> list[int]:
    assert (logits > float("-inf")).sum(-1).tolist() == [1] * logits.shape[0]
    return logits.argmax(-1).tolist()  # type: ignore[no-any-return]


def sequence(seed: int, steps: int, row: int, rows: int) -> list[int]:
    """What a request draws in a row of a batch of ``rows`` others, from peaked logits that repeat themselves."""
    state = RasState(rows, CPU)
    for other in range(rows):
        state.start(other, 1000 + other, [])
    state.start(row, seed, [])
    generator = torch.Generator().manual_seed(5)
    tokens = []
    for _ in range(steps):
        logits = torch.randn(1, 60, generator=generator).repeat(rows, 1) * 3
        tokens.append(picked(state.apply(logits))[row])
    return tokens


def test_a_request_draws_the_same_alone_and_in_any_row_of_a_batch() -> None:
    alone = sequence(42, 40, 0, 1)
    assert sequence(42, 40, 3, 5) == alone
    assert sequence(43, 40, 0, 1) != alone


def test_rows_may_move_swap_and_be_preempted() -> None:
    alone = sequence(42, 40, 0, 1)
    state = RasState(4, CPU)
    state.start(0, 42, [])
    state.start(1, 7, [])
    generator = torch.Generator().manual_seed(5)
    row, tokens = 0, []
    for step in range(40):
        logits = torch.randn(1, 60, generator=generator).repeat(4, 1) * 3
        tokens.append(picked(state.apply(logits)[:2] if row < 2 else state.apply(logits)[row : row + 1])[row % 2])
        if step == 8:
            state.move(0, 1, swap=True)
            row = 1
        if step == 17:
            state.move(1, 0, swap=False)
            state.start(1, 9, [])
            row = 0
        if step == 25:
            state.start(0, 99, [])  # another request takes the row; ours comes back with its history
            state.start(0, 42, list(tokens))
    assert tokens == alone


def test_row_without_a_seed_is_left_alone() -> None:
    state = RasState(2, CPU)
    state.start(0, None, [])
    state.start(1, 1, [])
    logits = torch.randn(2, 30)
    before = logits.clone()
    after = state.apply(logits)
    assert torch.equal(after[0], before[0]) and picked(after[1:])


def test_masked_ids_are_never_drawn() -> None:
    state = RasState(1, CPU)
    state.start(0, 3, [])
    for _ in range(200):
        logits = torch.randn(1, 40)
        logits[:, 30:] = float("-inf")
        assert picked(state.apply(logits))[0] < 30


def test_statistics_follow_the_definition() -> None:
    """Chi-square of 20,000 rows, half of which repeat the top id, against the exact probabilities."""
    rows = 20_000
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(1, 12, generator=generator) * 1.5
    p = scores.softmax(-1)[0].double()
    order = p.argsort(descending=True)
    kept = order[: int((p[order].cumsum(0) - p[order] < 0.8).sum())]
    nucleus = torch.zeros(12, dtype=torch.float64)
    nucleus[kept] = p[kept] / p[kept].sum()
    top = int(order[0])
    without = p.clone()
    without[top] = 0.0
    expected_repeat = nucleus.clone()
    expected_repeat[top] = 0.0
    expected_repeat += nucleus[top] * without / without.sum()
    for history, expected in ((-1, nucleus), (top, expected_repeat)):
        ring = torch.full((rows, 10), history)
        tokens = ras_pick(scores.expand(rows, -1), ring, torch.rand(rows, 2, generator=generator, dtype=torch.float64))
        counts = torch.bincount(tokens, minlength=12).double()
        possible = expected > 0
        assert counts[~possible].sum() == 0
        chi = ((counts - rows * expected) ** 2 / (rows * expected))[possible].sum()
        assert float(chi) < 31.3  # 11 degrees of freedom, p = 0.001
