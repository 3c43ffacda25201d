"""All samplers draw the same ids: the rule's reference, vLLM's processor with and without its kernel, and the kernel of
our own language model.

They are compared where rounding or order could part them: ids that are equally likely, a nucleus that ends exactly at
its share, draws at the ends of [0, 1), repeats at exactly the limit, and rows in which next to nothing is possible.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined

from tts_engine.cosyvoice.kernels.sampling import sample
from tts_engine.cosyvoice.lm.api import DRAW, FEED, INTERLEAVED
from tts_engine.cosyvoice.lm.cuda_steps import SlotState
from tts_engine.cosyvoice.models.config import SamplingConfig
from tts_engine.cosyvoice.sampling import ras, uniforms
from tts_engine.cosyvoice.vllm_plugin.ras import RasState

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
USUAL = SamplingConfig()
IDS = 60
SEEDS = 40
NEVER = float("-inf")


def by_reference(logits: Tensor, history: Sequence[int], config: SamplingConfig) -> list[int]:
    ring = torch.full((SEEDS, max(config.window, len(history))), -1, device=DEVICE)
    if history:
        ring[:, -len(history) :] = torch.tensor(history, device=DEVICE)
    seeds = torch.arange(SEEDS, device=DEVICE)
    draws = uniforms(seeds, torch.full_like(seeds, len(history)))
    drawn, _ = ras(logits.expand(SEEDS, -1), ring, draws, config)
    return drawn.tolist()  # type: ignore[no-any-return]


def by_vllm(logits: Tensor, history: Sequence[int], config: SamplingConfig, *, fused: bool) -> list[int]:
    state = RasState(SEEDS, DEVICE, config, fused=fused)
    for row in range(SEEDS):
        state.start(row, row, list(history))
    left = state.apply(logits.repeat(SEEDS, 1))
    return left.argmax(-1).tolist()  # type: ignore[no-any-return]


def by_kernel(logits: Tensor, history: Sequence[int], config: SamplingConfig) -> list[int]:
    state = SlotState(SEEDS, 32, DEVICE, window=config.window)
    slots = torch.arange(SEEDS, device=DEVICE)
    zeros = torch.zeros_like(slots)
    state.begin(slots, zeros, slots, zeros)
    for step, drawn in enumerate(history):
        state.rings[:, step % config.window] = drawn
        state.steps += 1
    tokens = torch.zeros_like(slots)
    sample(logits.repeat(SEEDS, 1), slots, state, tokens, config, ids=IDS, first_stop=IDS, fill=0, advance=True)
    return tokens.tolist()  # type: ignore[no-any-return]


def row(values: dict[int, float], rest: float = NEVER) -> Tensor:
    logits = torch.full((1, IDS), rest, device=DEVICE)
    for place, value in values.items():
        logits[0, place] = value
    return logits


CASES = {
    "all equal": (row({}, 0.0), [], USUAL),
    "a nucleus of exactly four of five": (row(dict.fromkeys((50, 3, 20, 8, 41), 1.5)), [], USUAL),
    "a nucleus of exactly eight of ten": (row(dict.fromkeys(range(0, 60, 6), -3.0)), [], USUAL),
    "equal ids at the last of the places": (row({7: 3.0}, 0.0), [], replace(USUAL, top_k=4, top_p=1.0)),
    "fewer possible ids than places": (row({1: 0.3, 2: 0.2}), [], USUAL),
    "one possible id that repeats": (row({9: 0.0}), [9] * 10, USUAL),
    "all others far below the one that repeats": (row({9: 0.0}, -200.0), [9] * 10, USUAL),
    "one repeat among ten": (row({5: 8.0}, 0.0), [5, *range(10, 19)], USUAL),
    "a repeat that has just left the window": (row({5: 8.0}, 0.0), [5, *range(10, 20)], USUAL),
    "three repeats where three are the limit": (row({5: 8.0}, 0.0), [5, 5, 5], replace(USUAL, tau_r=0.3)),
    "two repeats where three are the limit": (row({5: 8.0}, 0.0), [5, 5, 6], replace(USUAL, tau_r=0.3)),
    "a window of six, past its end": (row({5: 8.0}, 0.0), [1, 5, 2, 3, 4, 6, 7], replace(USUAL, window=6)),
    "everything kept": (row({}, 0.0), [], replace(USUAL, top_k=60, top_p=1.0)),
    "a share that is smaller than the best id": (row({4: 2.0}, 0.0), [], replace(USUAL, top_p=1e-6)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_all_samplers_draw_the_same(name: str) -> None:
    want = by_reference(*CASES[name])
    assert by_vllm(*CASES[name], fused=False) == want
    assert by_vllm(*CASES[name], fused=True) == want
    assert by_kernel(*CASES[name]) == want


@pytest.mark.parametrize("config", [USUAL, SamplingConfig(top_p=0.95, top_k=50, window=16, tau_r=0.2)])
def test_all_samplers_draw_the_same_from_peaked_rows(config: SamplingConfig) -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(8):
        logits = (3 * torch.randn(1, IDS, generator=generator)).bfloat16().float().to(DEVICE)  # bf16 makes equal ids
        history = torch.randint(0, IDS, (20,), generator=generator).tolist()
        want = by_reference(logits, history, config)
        assert by_vllm(logits, history, config, fused=False) == want
        assert by_vllm(logits, history, config, fused=True) == want
        assert by_kernel(logits, history, config) == want


def test_vllms_kernel_leaves_what_its_plain_twin_leaves() -> None:
    """Rows without a seed, rows with control ids of which one may be drawn, and the history over more than a window."""
    plain, fused = (RasState(4, DEVICE, USUAL, fused=by_kernel) for by_kernel in (False, True))
    generator = torch.Generator().manual_seed(4)
    for state in (plain, fused):
        state.start(0, 7, [])
        state.start(1, None, [])
        state.start(2, 8, [3, 4], controls=[50, 53])
    for _ in range(12):
        logits = (3 * torch.randn(3, IDS, generator=generator)).to(DEVICE)
        logits[:, 50:] += 9.0
        left = fused.apply(logits.clone())
        assert torch.equal(left, plain.apply(logits.clone()))
        assert torch.equal(left[1], logits[1])
        assert int(left[2].argmax()) in {*range(50), 53}


def test_cases_say_what_they_are_named_for() -> None:
    """The edges are reached: each case draws what its name says, by any sampler."""

    def drawn(name: str) -> set[int]:
        return set(by_reference(*CASES[name]))

    assert drawn("all equal") <= set(range(25))
    assert drawn("a nucleus of exactly four of five") == {3, 8, 20, 41}
    assert drawn("a nucleus of exactly eight of ten") == set(range(0, 48, 6))
    assert drawn("equal ids at the last of the places") == {7, 0, 1, 2}
    assert drawn("one possible id that repeats") == {9}
    assert 9 not in drawn("all others far below the one that repeats")
    assert 5 not in drawn("one repeat among ten")
    assert drawn("a repeat that has just left the window") == {5}
    assert 5 not in drawn("three repeats where three are the limit")
    assert drawn("two repeats where three are the limit") == {5}
    assert drawn("a share that is smaller than the best id") == {4}


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_row_without_numbers_draws_no_id(broken: float) -> None:
    assert by_kernel(row({3: broken}, 0.0), [], USUAL) == [-1] * SEEDS


@torch.inference_mode()
def test_logits_without_a_number_draw_no_id() -> None:
    logits = torch.randn(2, 64, device=DEVICE)
    logits[1, 5] = float("nan")
    state = SlotState(2, 32, DEVICE, window=10)
    tokens = torch.zeros(2, dtype=torch.long, device=DEVICE)
    slots = torch.arange(2, device=DEVICE)
    sample(logits, slots, state, tokens, SamplingConfig(), ids=60, first_stop=50, fill=53, advance=True)
    assert tokens[0] >= 0
    assert tokens[1] == -1


@torch.inference_mode()
def test_slots_that_are_only_fed_or_forced_or_may_not_end() -> None:
    logits = torch.full((4, 64), -5.0, device=DEVICE)
    logits[:, 55] = 9.0  # a control id, by far the likeliest
    logits[3, 53] = 5.0  # the one that asks for text
    state: Any = SlotState(4, 32, DEVICE, window=10)
    inputs = [(0, 70, FEED, 0), (1, 71, 53, INTERLEAVED), (2, 72, DRAW, 0), (3, 73, DRAW, INTERLEAVED)]
    state.give(torch.tensor(inputs, device=DEVICE))
    assert state.last.tolist() == [70, 71, 72, 73]
    tokens, slots = (torch.arange(4, device=DEVICE) for _ in range(2))
    sample(logits, slots, state, tokens, SamplingConfig(), ids=60, first_stop=50, fill=53, advance=True)
    assert tokens[1:].tolist() == [53, 55, 53]
    assert state.last.tolist() == [70, 53, 55, 53]
    assert state.steps.tolist() == [0, 1, 1, 1]
    assert state.positions.tolist() == [1, 1, 1, 1]
