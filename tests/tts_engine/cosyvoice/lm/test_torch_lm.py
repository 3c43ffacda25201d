"""Continuous batching of the language model: the ids of a clause do not depend on its neighbours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.tts_engine.cosyvoice.lm.drawn import ids_of
from tests.waiting import PATIENCE_S, until
from tts_engine.cosyvoice.lm.api import Input, SequencePrefill
from tts_engine.cosyvoice.lm.eager_steps import Drawn, EagerLm
from tts_engine.cosyvoice.lm.sequence import LmSequence
from tts_engine.cosyvoice.lm.torch_lm import TorchLm, TorchLmConfig
from tts_engine.cosyvoice.models.config import LanguageModelConfig, SamplingConfig
from tts_engine.cosyvoice.models.llm import KeyValueCache, SpeechLanguageModel
from tts_engine.cosyvoice.sampling import push, ras, stop_mask, uniforms
from tts_engine.errors import Exhausted, InvalidRequest, SynthesisFailed, Unavailable

CONFIG = LanguageModelConfig(
    version=3,
    vocab_size=100,
    hidden_size=64,
    intermediate_size=96,
    layers=2,
    heads=4,
    kv_heads=2,
    speech_token_size=200,
)
SMALL = TorchLmConfig(decode_rows=2)
PROMPTS = [np.array([200, 405, 410 + n, 202, n, n + 7][: 4 + n % 3]) for n in range(6)]


def network() -> SpeechLanguageModel:
    torch.manual_seed(0)
    model = SpeechLanguageModel(CONFIG).eval()
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.1
    return model


@asynccontextmanager
async def running(steps: EagerLm | None = None, config: TorchLmConfig = SMALL) -> AsyncIterator[TorchLm]:
    lm = TorchLm(steps or EagerLm(network(), slots=3, max_length=96), config)
    await lm.start()
    try:
        yield lm
    finally:
        await lm.aclose()


class Counting(EagerLm):
    """Counts its decode steps."""

    rounds = 0

    def decode(self, slots: Sequence[int], inputs: Sequence[Input] = ()) -> Drawn:
        self.rounds += 1
        return super().decode(slots, inputs)


@dataclass
class Some:
    """A reader who wants so many ids each time, and whose caller has so much in hand."""

    count: int
    slack: float = 0.0

    def wanted(self) -> int:
        return self.count

    def slack_s(self, now: float) -> float:
        return self.slack


async def ids(lm: TorchLm, number: int, *, least: int = 8, most: int = 30) -> list[int]:
    return await ids_of(lm.generate(PROMPTS[number], min_tokens=least, max_tokens=most, seed=number, reader=Some(3)))


@torch.inference_mode()
def alone(number: int, *, least: int, most: int) -> list[int]:
    """The same clause by the plain network, a loop of one row."""
    model = network()
    cache = KeyValueCache(CONFIG, slots=1, max_length=96)
    table = torch.cat([model.speech_embedding.weight, model.backbone.embed_tokens.weight])
    hidden = model(table[torch.tensor(PROMPTS[number])][None], torch.zeros(1, dtype=torch.long), cache)
    history, out = torch.full((1, 10), -1), list[int]()
    while len(out) < most:
        logits = model.logits(hidden[:, -1])
        if len(out) < least:
            logits = logits.masked_fill(stop_mask(CONFIG), float("-inf"))
        token, _ = ras(logits, history, uniforms(torch.tensor([number]), torch.tensor([len(out)])), SamplingConfig())
        if token >= CONFIG.speech_token_size:
            break
        history = push(history, token)
        out.append(int(token))
        hidden = model(table[token][:, None], torch.tensor([len(PROMPTS[number]) + len(out) - 1]), cache)
    return out


async def test_each_clause_draws_what_it_draws_alone_while_others_join_and_leave() -> None:
    async with running() as lm:
        together = await asyncio.gather(*(ids(lm, n, least=8 + n, most=30) for n in range(6)))
    assert together == [alone(n, least=8 + n, most=30) for n in range(6)]
    assert any(len(tokens) < 30 for tokens in together)  # some met a stop id


async def test_length_is_bounded_from_both_sides() -> None:
    async with running() as lm:
        assert len(await ids(lm, 0, least=25, most=25)) == 25


async def test_closing_the_generator_frees_the_slot() -> None:
    async with running() as lm:
        async with aclosing(lm.generate(PROMPTS[0], min_tokens=80, max_tokens=80, seed=1)) as tokens:
            async for _ in tokens:
                break
            assert lm.free_slots == 2
        await until(lambda: lm.free_slots == 3)


async def test_a_clause_is_not_drawn_beyond_what_its_reader_asked_for() -> None:
    taken: list[int] = []
    reader, steps = Some(4), Counting(network(), slots=3, max_length=96)
    async with running(steps) as lm:
        stream = lm.generate(PROMPTS[0], min_tokens=80, max_tokens=80, seed=1, reader=reader)
        async with aclosing(stream) as groups:
            for wanted in (4, 11):  # the first id of all is the prefill's
                taken += await anext(groups)
                reader.count = 7
                assert (len(taken), steps.rounds + 1, lm._due()) == (wanted, wanted, [])


async def test_while_others_are_busy_only_the_urgent_are_drawn_for_and_some_ride_along() -> None:
    steps = Counting(network(), slots=3, max_length=96)
    async with running(steps, TorchLmConfig(riding_rows=2, urgent_s=0.4)) as lm:
        busy = True
        lm.busy = lambda: busy
        calm = [Some(3, slack=1.0), Some(3, slack=2.0)]
        streams = [lm.generate(PROMPTS[n], min_tokens=80, max_tokens=80, seed=n, reader=r) for n, r in enumerate(calm)]
        waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await until(lambda: lm.live == 2)
        assert steps.rounds == 0
        urgent = lm.generate(PROMPTS[2], min_tokens=80, max_tokens=80, seed=2, reader=Some(3, slack=0.1))
        await anext(urgent)
        await asyncio.wait(waiting[:1])
        assert not waiting[1].done()
        calm[1].slack = 0.0
        await waiting[1]
        busy = False
        assert all([await anext(streams[0]) for _ in range(3)])
        for stream in (*streams, urgent):
            await stream.aclose()


class FreePlaces(Counting):
    """A step of one clause takes as long as one of three."""

    def filled(self, rows: int) -> int:
        return 3


async def test_a_paused_clause_is_drawn_ahead_along_with_others_and_not_by_itself() -> None:
    steps = FreePlaces(network(), slots=3, max_length=96)
    async with running(steps, TorchLmConfig(ahead=5)) as lm:
        paused = lm.generate(PROMPTS[0], min_tokens=80, max_tokens=80, seed=0, reader=Some(3))
        async with aclosing(paused) as groups:
            taken = [*await anext(groups)]
            (sequence,) = lm._live
            assert (len(taken), len(sequence.tokens), lm._due()) == (3, 3, [])
            sequence.waker.clear()
            assert await ids(lm, 1, least=30, most=30) == alone(1, least=30, most=30)
            assert len(sequence.tokens) == 3 + 5
            assert not sequence.waker.is_set(), "these are not awaited"
            rounds = steps.rounds
            taken += await anext(groups)
            assert steps.rounds == rounds
        assert taken == alone(0, least=80, most=80)[:8]


class Counted(EagerLm):
    """Counts the clauses of each prefill."""

    def __init__(self) -> None:
        super().__init__(network(), slots=6, max_length=96)
        self.prefills: list[int] = []

    def prefill(self, admissions: Sequence[SequencePrefill]) -> Drawn:
        self.prefills.append(len(admissions))
        return super().prefill(admissions)


async def test_all_who_ask_in_one_turn_of_the_loop_begin_together() -> None:
    steps, notified = Counted(), 0
    async with running(steps, TorchLmConfig()) as lm:
        changed = lm._changed
        await until(lambda: bool(changed._waiters))  # type: ignore[attr-defined]  # the thread is idle
        notify = changed.notify

        def count() -> None:
            nonlocal notified
            notified += 1
            notify()

        changed.notify = count  # type: ignore[method-assign, assignment]
        asking = [asyncio.ensure_future(ids(lm, n)) for n in range(6)]
        await asyncio.sleep(0)
        assert (notified, len(lm._waiting)) == (0, 6), "all have asked, and the thread has not been woken"
        await asyncio.sleep(0)
        assert notified == 1
        together = await asyncio.gather(*asking)
    assert steps.prefills == [6]
    assert together == [alone(n, least=8, most=30) for n in range(6)]


async def test_cancelled_clauses_leave_nothing_behind() -> None:
    async with running() as lm:

        async def cancelled(number: int) -> None:
            async with aclosing(lm.generate(PROMPTS[number % 6], min_tokens=80, max_tokens=80, seed=number)) as tokens:
                await anext(tokens)

        for begin in range(0, 120, 60):
            await asyncio.gather(*(cancelled(n) for n in range(begin, begin + 60)))
        await until(lambda: lm.free_slots == 3 and lm.live == 0)


async def test_a_full_queue_refuses() -> None:
    async with running(config=TorchLmConfig(max_waiting=1)) as lm:
        open_generators = [lm.generate(PROMPTS[0], min_tokens=80, max_tokens=80, seed=n) for n in range(4)]
        waiting: list[asyncio.Future[Sequence[int]]] = []
        for left, generator in zip((2, 1, 0), open_generators, strict=False):
            waiting.append(asyncio.ensure_future(anext(generator)))
            await until(lambda left=left: lm.free_slots == left)  # type: ignore[misc]
        waiting.append(asyncio.ensure_future(anext(open_generators[3])))
        await asyncio.sleep(0)
        with pytest.raises(Exhausted, match="1 clauses wait"):
            await ids(lm, 1)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for generator in open_generators:
            await generator.aclose()


async def test_a_prompt_without_room_is_refused() -> None:
    async with running() as lm:
        with pytest.raises(InvalidRequest, match="90 of 96 positions, expected at least 10"):
            await ids_of(lm.generate(np.ones(90, np.int64), min_tokens=10, max_tokens=20, seed=0))


class KeepsPrefixes(EagerLm):
    """Says that it knows the prefixes of all prompts."""

    def computed(self, admission: SequencePrefill) -> int:
        return len(admission.ids) - admission.shared


@pytest.mark.parametrize(
    ("shared", "rows", "positions", "begun"),
    [
        (0, 16, 10, [[4, 5], [6, 4], [5], [6]]),
        (0, 16, 15, [[4, 5, 6], [4, 5, 6]]),
        (0, 2, 15, [[4, 5], [6, 4], [5, 6]]),
        (3, 16, 10, [[4, 5, 6, 4, 5], [6]]),
        (0, 16, 3, [[4], [5], [6], [4], [5], [6]]),
    ],
)
async def test_the_positions_that_a_prefill_computes_are_bounded(
    shared: int, rows: int, positions: int, begun: list[list[int]]
) -> None:
    """A prompt that is longer by itself goes alone."""
    steps = KeepsPrefixes(network(), slots=6, max_length=96)
    lm = TorchLm(steps, TorchLmConfig(prefill_rows=rows, prefill_positions=positions))
    for prompt in PROMPTS:
        admission = SequencePrefill(slot=-1, ids=prompt, seed=0, min_tokens=1, shared=shared)
        lm._waiting.append(LmSequence(Some(3), admission, 8))
    admitted = [lm._admit() for _ in begun]
    assert [[len(s.admission.ids) for s in group if s.admission is not None] for group in admitted] == begun
    assert sorted(s.admission.slot for group in admitted for s in group if s.admission is not None) == list(range(6))
    assert all(s.admission.shared == shared for group in admitted for s in group if s.admission is not None)


async def test_what_clauses_share_reaches_the_steps_and_changes_nothing() -> None:
    seen: list[int] = []

    class Watched(EagerLm):
        def prefill(self, admissions: Sequence[SequencePrefill]) -> Drawn:
            seen.extend(a.shared for a in admissions)
            return super().prefill(admissions)

    async with running(Watched(network(), slots=3, max_length=96)) as lm:
        stream = lm.generate(PROMPTS[2], min_tokens=8, max_tokens=30, seed=2, reader=Some(3), shared=2)
        assert await ids_of(stream) == alone(2, least=8, most=30)
    assert seen == [2]


class BrokenRow(EagerLm):
    """No number for one seed."""

    def prefill(self, admissions: Sequence[SequencePrefill]) -> Drawn:
        drawn = super().prefill(admissions).ids()
        return Drawn([-1 if a.seed == 1 else token for a, token in zip(admissions, drawn, strict=True)])


async def test_a_clause_without_numbers_fails_alone() -> None:
    async with running(BrokenRow(network(), slots=3, max_length=96)) as lm:
        results = await asyncio.gather(*(ids(lm, n) for n in range(3)), return_exceptions=True)
        assert isinstance(results[1], SynthesisFailed)
        assert [len(r) >= 8 for r in (results[0], results[2]) if isinstance(r, list)] == [True, True]
        await until(lambda: lm.free_slots == 3)


class DeadDevice(EagerLm):
    def decode(self, slots: Sequence[int], inputs: Sequence[Input] = ()) -> Drawn:
        raise RuntimeError("CUDA error: device-side assert triggered")


async def test_a_device_error_fails_what_runs_and_refuses_what_comes() -> None:
    async with running(DeadDevice(network(), slots=3, max_length=96)) as lm:
        with pytest.raises(SynthesisFailed, match="RuntimeError"):
            await ids(lm, 0)
        with pytest.raises(Unavailable):
            await ids(lm, 1)


class DeadAtPrefill(EagerLm):
    def prefill(self, admissions: Sequence[SequencePrefill]) -> Drawn:
        raise RuntimeError("CUDA error: device-side assert triggered")


async def test_a_clause_whose_prefill_fails_hears_of_it() -> None:
    async with running(DeadAtPrefill(network(), slots=3, max_length=96)) as lm:
        with pytest.raises(SynthesisFailed, match="RuntimeError"):
            await asyncio.wait_for(ids(lm, 0), PATIENCE_S)


class DeadAtSecondStep(EagerLm):
    """Its first step lasts until the test lets it end, and its second one fails."""

    def __init__(self, model: SpeechLanguageModel) -> None:
        super().__init__(model, slots=3, max_length=96)
        self.entered, self.let_go = threading.Event(), threading.Event()

    def decode(self, slots: Sequence[int], inputs: Sequence[Input] = (), *, alone: bool = False) -> Drawn:
        if self.entered.is_set():
            raise RuntimeError("CUDA error: device-side assert triggered")
        self.entered.set()
        assert self.let_go.wait(PATIENCE_S)
        return super().decode(slots, inputs)


async def test_a_clause_that_begins_in_the_round_of_a_device_error_hears_of_it() -> None:
    steps = DeadAtSecondStep(network())
    async with running(steps) as lm:
        first = asyncio.create_task(ids(lm, 0))
        await until(steps.entered.is_set)
        second = asyncio.create_task(ids(lm, 1))
        await until(lambda: lm._waiting)
        steps.let_go.set()
        results = await asyncio.wait_for(asyncio.gather(first, second, return_exceptions=True), PATIENCE_S)
    assert [type(result) for result in results] == [SynthesisFailed, SynthesisFailed]


class GivenUpAtTheSecondLook(LmSequence):
    """A clause whose reader gives up between two looks of the loop's thread."""

    looks = 0

    @property
    def cancelled(self) -> bool:
        self.looks += 1
        return self.looks > 1

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        """Ignore the value: ``LmSequence`` sets its first one here."""


async def test_a_clause_given_up_while_another_leaves_frees_its_slot() -> None:
    lm = TorchLm(EagerLm(network(), slots=2, max_length=96), SMALL)
    leaves, gives_up = LmSequence(Some(3), None, 8), GivenUpAtTheSecondLook(Some(3), None, 8)
    leaves.slot, gives_up.slot = lm._free.pop(), lm._free.pop()
    leaves.done = True
    lm._live = [leaves, gives_up]
    lm._admit()
    lm._admit()
    assert lm.free_slots == 2
