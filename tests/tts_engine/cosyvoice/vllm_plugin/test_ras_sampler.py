"""The state of vLLM's sampler alone, on the CPU; ``test_vllm_engine`` runs it inside vLLM."""

import torch

from tts_engine.cosyvoice.models.config import SamplingConfig
from tts_engine.cosyvoice.vllm_plugin.ras import RasState

CPU = torch.device("cpu")
CONFIG = SamplingConfig()


def picked(logits: torch.Tensor) -> list[int]:
    assert (logits > float("-inf")).sum(-1).tolist() == [1] * logits.shape[0]
    return logits.argmax(-1).tolist()  # type: ignore[no-any-return]


def sequence(seed: int, steps: int, row: int, rows: int) -> list[int]:
    """Return a request's tokens in a row of a batch of ``rows`` others, from peaked logits that repeat themselves."""
    state = RasState(rows, CPU, CONFIG)
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
    state = RasState(4, CPU, CONFIG)
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
    state = RasState(2, CPU, CONFIG)
    state.start(0, None, [])
    state.start(1, 1, [])
    logits = torch.randn(2, 30)
    before = logits.clone()
    after = state.apply(logits)
    assert torch.equal(after[0], before[0]) and picked(after[1:])


def test_masked_ids_are_never_drawn() -> None:
    state = RasState(1, CPU, CONFIG)
    state.start(0, 3, [])
    for _ in range(200):
        logits = torch.randn(1, 40)
        logits[:, 30:] = float("-inf")
        assert picked(state.apply(logits))[0] < 30
