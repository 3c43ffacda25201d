"""On a GPU: kernels of the full-size networks against their plain twins, and graphs against the same steps without.

``make test-gpu`` runs this. Weights are random: what is compared is arithmetic, not speech. Errors are relative, by
norm, against the plain network in fp32 without TF32. A product in bf16 keeps eight bits of each factor: its error is
about 2e-3, and grows with the number of layers. In fp32 the kernels' own products use TF32, which keeps ten bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tts_engine.config import CosyVoiceConfig
from tts_engine.cosyvoice.lm.api import SequencePrefill, joined_table
from tts_engine.cosyvoice.models.cfm import StepTables
from tts_engine.cosyvoice.models.config import FlowV2Config, FlowV3Config, HiftConfig, LanguageModelConfig
from tts_engine.cosyvoice.models.flow import Flow, FlowCache, FlowRows
from tts_engine.cosyvoice.models.flow_v2 import FlowV2
from tts_engine.cosyvoice.models.flow_v3 import FlowV3
from tts_engine.cosyvoice.models.hift import Hift
from tts_engine.cosyvoice.models.hift_causal import CausalHift
from tts_engine.cosyvoice.models.llm import KeyValueCache, SpeechLanguageModel
from tts_engine.cosyvoice.models.streaming import Span
from tts_engine.cosyvoice.token2wav.runner import ModelRunner, RunnerConfig
from tts_engine.cosyvoice.token2wav.scheduler import BatchRow, Shape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: `make test-gpu` needs one"),
    pytest.mark.timeout(600),  # kernels are compiled at their first use
]

DEVICE = torch.device("cuda")
Version = Literal[2, 3]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
VERSIONS = pytest.mark.parametrize("version", [2, 3], ids=["v2", "v3"])
PROMPT_SPEECH = (0, 113, 170, 26)
"""Speech ids of each prompt; a few ids of text come on top."""
STEPS = 24
LM_BOUND = {torch.float32: 2e-3, torch.bfloat16: 4e-2}
"""Most relative error of the language model's logits."""


@pytest.fixture(autouse=True)
def _exact_reference() -> Iterator[None]:
    """No TF32 in plain torch, the same weights in every test, and the memory of the test before given back."""
    torch.manual_seed(0)
    saved = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with torch.inference_mode():
        yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = saved
    torch.cuda.empty_cache()


def relative(got: Tensor, want: Tensor) -> float:
    """Norm of the difference over the norm of ``want``, in fp64. NaN stays NaN, and fails every bound."""
    return float((got.double() - want.double()).norm() / want.double().norm())


def perturbed(network: Any) -> Any:
    """On the device, with biases, norms and snakes that differ from those of construction: each of them counts."""
    network = network.eval().to(DEVICE)
    for parameter in network.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.rand_like(parameter)
    return network


# -- the language model ------------------------------------------------------------------------------------------------


Prompt = tuple[list[int], list[int], list[int]]
"""Ids of the transcript, of the text, of the reference's speech."""


def _language_model(version: Version) -> SpeechLanguageModel:
    with torch.device(DEVICE):
        model = SpeechLanguageModel(LanguageModelConfig(version=version))
    made: SpeechLanguageModel = perturbed(model)
    return made


def _prompts(rows: int = len(PROMPT_SPEECH)) -> list[Prompt]:
    rng = np.random.default_rng(1)
    return [
        (rng.integers(0, 1000, 3).tolist(), rng.integers(0, 1000, 2).tolist(), rng.integers(0, 6561, n).tolist())
        for n in (PROMPT_SPEECH * rows)[:rows]
    ]


def _joined(config: LanguageModelConfig, rows: int = len(PROMPT_SPEECH)) -> list[NDArray[np.int64]]:
    return [joined_table(config).prompt(*(np.array(part, np.int32) for part in prompt)) for prompt in _prompts(rows)]


def _admissions(prompts: Sequence[NDArray[np.int64]], *, first_slot: int = 0, shared: int = 0) -> list[SequencePrefill]:
    """Clauses that draw no stop id, one in each slot from ``first_slot`` on."""
    return [
        SequencePrefill(slot=slot, ids=ids, seed=slot + 5, min_tokens=10**6, shared=shared)
        for slot, ids in enumerate(prompts, first_slot)
    ]


def _recording(plain: SpeechLanguageModel, *, slots: int, max_length: int, dtype: torch.dtype) -> Any:
    """The steps of a GPU. ``logits`` is what the last prefill without a graph gave, ``(ROWS, ids)``."""
    from tts_engine.cosyvoice.lm.cuda_steps import CudaLm
    from tts_engine.cosyvoice.lm.flat_prompts import FlatPrompts

    class Recording(CudaLm):
        logits: Tensor

        def prefill_logits(self, prompts: FlatPrompts) -> Tensor:
            self.logits = super().prefill_logits(prompts)
            return self.logits

    return Recording(plain, slots=slots, max_length=max_length, device=DEVICE, dtype=dtype)


def _prefilled(fused: Any, admissions: Sequence[SequencePrefill]) -> Tensor:
    """Logits ``(prompts, speech ids)``, of prefills of up to 16."""
    parts = []
    for first in range(0, len(admissions), 16):
        some = admissions[first : first + 16]
        torch.cuda.synchronize()  # weights come, and logits are read, on another stream
        fused.prefill(some).ids()
        parts.append(fused.logits[: len(some), : fused.config.speech_vocab_size].clone())
    torch.cuda.synchronize()
    return torch.cat(parts)


def _whole(plain: SpeechLanguageModel, joined: Tensor, prompts: Sequence[NDArray[np.int64]]) -> Tensor:
    """The plain network's logits after prompts of joined ids. ``joined``: the table of their embeddings, fp32."""
    cache = KeyValueCache(plain.config, slots=1, max_length=max(map(len, prompts)), device=DEVICE)
    start = torch.zeros(1, dtype=torch.long, device=DEVICE)
    last = [plain(joined[torch.from_numpy(ids).to(DEVICE)][None], start, cache)[:, -1] for ids in prompts]
    return plain.logits(torch.cat(last))


def _assert_each_row_is_near(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    """No row is another's. The bound is that of all rows together, with room for one that is rounded badly."""
    errors = [relative(*pair) for pair in zip(got, want, strict=True)]
    assert max(errors) < 2 * LM_BOUND[dtype], errors


def _table(plain: SpeechLanguageModel) -> Tensor:
    """The joined table of version 3."""
    return torch.cat([plain.speech_embedding.weight, plain.backbone.embed_tokens.weight])


@pytest.mark.parametrize("rows", [4, 13, 32, 40])
@VERSIONS
@DTYPES
def test_the_language_models_logits_are_those_of_the_plain_one(version: Version, dtype: torch.dtype, rows: int) -> None:
    """Prefill of prompts, then steps that are fed the same ids in both: each size of the kernel for a whole step, and
    more rows than it takes."""
    plain = _language_model(version)
    config = plain.config
    fused = _recording(plain, slots=rows, max_length=256, dtype=dtype)
    prompts = _joined(config, rows)
    lengths = torch.tensor([len(ids) for ids in prompts], device=DEVICE)
    slots = torch.arange(rows, device=DEVICE)
    got = _prefilled(fused, _admissions(prompts))

    cache = KeyValueCache(config, slots=rows, max_length=256, device=DEVICE)
    start = torch.zeros(1, dtype=torch.long, device=DEVICE)
    fed = [
        plain(plain.prompt(*prompt)[None], start, cache, slots=start + row)[:, -1]
        for row, prompt in enumerate(_prompts(rows))
    ]
    want = plain.logits(torch.cat(fed))
    ids = config.speech_vocab_size
    errors = [relative(got, want)]
    generator = torch.Generator(device=DEVICE).manual_seed(2)
    for step in range(STEPS):
        tokens = torch.randint(0, config.speech_token_size, (rows,), device=DEVICE, generator=generator)
        fused.state.last[slots] = tokens
        fused.state.positions[slots] = lengths + step
        got = fused.decode_logits(slots)
        want = plain.logits(plain(plain.embed_speech(tokens)[:, None], lengths + step, cache)[:, 0])
        errors.append(relative(got[:, :ids], want))
    assert max(errors) < LM_BOUND[dtype], errors


@DTYPES
def test_logits_are_the_same_whether_a_prefix_is_known_or_not(dtype: torch.dtype) -> None:
    """Two voices of 50 and of 130 ids, whose clauses differ from there on: unknown, written, and read."""
    plain = _language_model(3)
    fused = _recording(plain, slots=32, max_length=300, dtype=dtype)
    rng = np.random.default_rng(3)
    table = _table(plain)
    for shared in (50, 130):
        voice = rng.integers(0, 6561, shared)
        prompts = [np.concatenate([voice, rng.integers(0, 6561, 1 + 11 * n)]) for n in range(12)]
        want = _whole(plain, table, prompts)
        assert fused.computed(_admissions(prompts, shared=shared)[0]) == len(prompts[0])
        unknown = _prefilled(fused, _admissions(prompts, shared=shared))
        kept = fused.cache[:, :, :12].clone()
        assert fused.computed(_admissions(prompts, shared=shared)[0]) == len(prompts[0]) - shared
        known = _prefilled(fused, _admissions(prompts, first_slot=12, shared=shared))
        alone = torch.cat([_prefilled(fused, [a]) for a in _admissions(prompts, shared=shared)])
        for got in (unknown, known, alone):
            assert relative(got, want) < LM_BOUND[dtype]
            _assert_each_row_is_near(got, want, dtype)
        for slot, ids in enumerate(prompts):
            n = len(ids)
            error = relative(fused.cache[:, :, 12 + slot, :, :n], kept[:, :, slot, :, :n])
            assert error < 2 * LM_BOUND[dtype]  # both are rounded


@DTYPES
def test_logits_are_the_same_in_any_company(dtype: torch.dtype) -> None:
    """A prompt alone, among 16, and in the place of another."""
    plain = _language_model(3)
    fused = _recording(plain, slots=16, max_length=300, dtype=dtype)
    rng = np.random.default_rng(4)
    prompts = [
        rng.integers(0, 6561, n) for n in (1, 2, 63, 64, 65, 127, 128, 129, 160, 192, 200, 215, 220, 227, 256, 299)
    ]
    want = _whole(plain, _table(plain), prompts)
    together = _prefilled(fused, _admissions(prompts))
    turned = _prefilled(fused, _admissions(prompts[::-1])).flip(0)
    alone = torch.cat([_prefilled(fused, [a]) for a in _admissions(prompts)])
    for got in (together, turned, alone):
        assert relative(got, want) < LM_BOUND[dtype]
        _assert_each_row_is_near(got, want, dtype)


@DTYPES
def test_the_language_models_graphs_draw_the_ids_of_the_same_steps_without_graphs(dtype: torch.dtype) -> None:
    """Two prefills, of which the second reads the prefix that the first has written, and steps."""
    from tts_engine.cosyvoice.lm.cuda_steps import CudaLm

    plain = _language_model(3)
    prompts, rows = _joined(plain.config), 2 * len(PROMPT_SPEECH)
    voice = np.arange(20)
    prompts = [np.concatenate([voice, ids]) for ids in (*prompts, *prompts)]
    graphs, eager = (CudaLm(plain, slots=rows, max_length=256, device=DEVICE, dtype=dtype) for _ in range(2))
    graphs.warm_up(rows=(rows,), lines=(384, 448))
    drawn, stepped = [], []
    for some in (slice(rows // 2), slice(rows // 2, rows)):
        admissions = _admissions(prompts, shared=len(voice))[some]
        assert sum(graphs.computed(a) for a in admissions) in range(321, 449), "a size that has been captured"
        drawn.append(graphs.prefill(admissions).ids())
        stepped.append(eager.prefill(admissions).ids())
    slots = torch.arange(rows, device=DEVICE)
    tokens = torch.zeros(rows, dtype=torch.long, device=DEVICE)
    torch.cuda.synchronize()  # they are used on another stream
    for _ in range(STEPS):
        drawn.append(graphs.decode(list(range(rows))).ids())
        with torch.cuda.stream(eager.stream):
            eager._decode_step(slots, tokens)
            stepped.append(tokens.tolist())
    assert drawn == stepped
    for state in ("positions", "steps", "last", "rings"):
        assert torch.equal(getattr(graphs.state, state)[:rows], getattr(eager.state, state)[:rows]), state


@pytest.mark.parametrize("rows", [1, 32, 128])
def test_vllms_sampler_draws_by_one_launch_what_it_draws_by_many(rows: int) -> None:
    from tts_engine.cosyvoice.vllm_plugin.ras import RasState

    config = LanguageModelConfig(version=3)
    plain, fused = (RasState(rows, DEVICE, config.sampling, fused=one_launch) for one_launch in (False, True))
    for state in (plain, fused):
        for row in range(rows):
            state.start(row, 100 + row, list(range(row % 12)))
    for _ in range(2 * config.sampling.window):
        logits = (2 * torch.randn(rows, config.speech_vocab_size, device=DEVICE)).bfloat16().float()
        assert torch.equal(fused.apply(logits.clone()), plain.apply(logits.clone()))


# -- the flow ----------------------------------------------------------------------------------------------------------


def _mels(flow: Flow, dtype: torch.dtype) -> list[Tensor]:
    """A row's first chunk; its end within the next chunk beside another row's first; a third one's short first chunk; a
    whole clause with padding."""
    cache = FlowCache(flow, slots=4, blocks=8, device=DEVICE, dtype=dtype)
    generator = torch.Generator(device=DEVICE).manual_seed(1)
    blocks = torch.tensor([[0, 0], [1, 2], [3, 4], [5, 0]], device=DEVICE)
    speaker = torch.randn(2, 80, generator=generator, device=DEVICE)
    out = []
    for slots, start, length, fed in (([1], [0], [25], 25), ([1, 2], [25, 0], [11, 25], 25), ([3], [0], [11], 11)):
        count = len(start)
        rows = FlowRows(
            slots=torch.tensor(slots, device=DEVICE),
            blocks=blocks[slots],
            start=torch.tensor(start, device=DEVICE),
            length=torch.tensor(length, device=DEVICE),
        )
        tokens = torch.randint(0, 6561, (count, fed + 3), generator=generator, device=DEVICE)
        cond = torch.randn(count, 2 * fed, 80, generator=generator, device=DEVICE)
        mel = flow.advance(tokens, rows.length + 3, cond, speaker[:count], rows, cache)
        out += [mel[row, : 2 * length[row]] for row in range(count)]
    tokens = torch.randint(0, 6561, (1, 153), generator=generator, device=DEVICE)
    cond = torch.randn(1, 300, 80, generator=generator, device=DEVICE)
    end = torch.tensor([131], device=DEVICE)
    return [*out, flow.whole(tokens, end, cond, speaker[:1], end)[0, :262]]


def _fuse(flow: Flow, dtype: torch.dtype) -> None:
    """Put the fused networks in place of the plain ones, as the engine does."""
    from tts_engine.cosyvoice.kernels.fused_conformer import FusedConformer
    from tts_engine.cosyvoice.kernels.fused_dit import FusedDiT
    from tts_engine.cosyvoice.kernels.fused_unet import FusedUNet

    fused: Any = FusedUNet if isinstance(flow, FlowV2) else FusedDiT
    flow.decoder.estimator = fused(flow.estimator, device=DEVICE, dtype=dtype)
    if isinstance(flow, FlowV2):
        flow.encoder = FusedConformer(flow.encoder, device=DEVICE, dtype=dtype)


def _conditions(flow: FlowV2, dtype: torch.dtype) -> list[Tensor]:
    """A row's first three chunks, another row's first two beside them; a whole clause with padding."""
    cache = FlowCache(flow, slots=4, blocks=8, device=DEVICE, dtype=dtype)
    generator = torch.Generator(device=DEVICE).manual_seed(1)
    slots, length = torch.tensor([[1, 2], [25, 25]], device=DEVICE)
    blocks = torch.tensor([[6, 1, 5], [2, 7, 0]], device=DEVICE)
    out = []
    for start, count in ((0, 1), (25, 2), (50, 2)):
        tokens = torch.randint(0, 6561, (count, 28), generator=generator, device=DEVICE)
        begun = torch.tensor([start, start - 25], device=DEVICE)
        rows = FlowRows(slots=slots[:count], blocks=blocks[:count], start=begun[:count], length=length[:count])
        out.append(flow.condition(tokens, length[:count] + 3, cache.condition_span(rows), cache.frame_keys))
    tokens = torch.randint(0, 6561, (2, 153), generator=generator, device=DEVICE)
    end = torch.tensor([150, 131], device=DEVICE)
    whole = flow.condition(tokens, end, Span.whole(end, chunk=None))
    return [*out, whole[0], whole[1, :262]]


@DTYPES
def test_the_fused_encoder_gives_the_condition_of_the_plain_one(dtype: torch.dtype) -> None:
    from tts_engine.cosyvoice.kernels.fused_conformer import FusedConformer

    flow = perturbed(FlowV2(FlowV2Config()))
    want = _conditions(flow, torch.float32)
    flow.encoder = FusedConformer(flow.encoder, device=DEVICE, dtype=dtype)
    got = _conditions(flow, dtype)
    errors = [relative(one, other) for one, other in zip(got, want, strict=True)]
    assert max(errors) < (2e-3 if dtype is torch.float32 else 1e-2), errors


@VERSIONS
@DTYPES
def test_the_fused_flow_gives_the_mel_of_the_plain_one(version: Version, dtype: torch.dtype) -> None:
    flow = perturbed(FlowV2(FlowV2Config()) if version == 2 else FlowV3(FlowV3Config()))
    flow.prepare()
    flow.to(DEVICE)
    want = _mels(flow, torch.float32)
    _fuse(flow, dtype)
    got = _mels(flow, dtype)
    errors = [relative(one, other) for one, other in zip(got, want, strict=True)]
    assert max(errors) < (2e-3 if dtype is torch.float32 else 2e-2), errors


def _one_launch_does_what_many_do(flow: Any, kernel: str, rows: FlowRows, step: Tensor, frames: int) -> list[FlowCache]:
    """Take an Euler step by the estimator's attribute ``kernel``, and without it. Compare what comes out and what is
    left in pages. Return the caches of both."""
    estimator, count = flow.estimator, len(rows.start)
    slots, blocks = int(rows.slots.max()) + 2, int(rows.blocks.max()) + 2  # the last are free
    caches = [FlowCache(flow, slots=slots, blocks=blocks, device=DEVICE, dtype=torch.bfloat16) for _ in range(2)]
    for each in (caches[0].keys.data, *caches[0].tails.data):
        each.normal_()
    for to, of in zip(caches[1].tails.data, caches[0].tails.data, strict=True):
        to.copy_(of)
    caches[1].keys.data.copy_(caches[0].keys.data)
    before = caches[0].keys.data.clone()
    x, mu, cond = (torch.randn(count, frames, 80, device=DEVICE) for _ in range(3))
    speaker = torch.randn(count, 80, device=DEVICE)
    tables = StepTables(modulations=flow.modulations, widths=flow.widths, cfg_rate=0.7)
    out = []
    assert getattr(estimator, kernel) is not None
    for cache, one_launch in zip(caches, (getattr(estimator, kernel), None), strict=True):
        setattr(estimator, kernel, one_launch)
        state = x.clone()
        inputs, span = estimator.begin(state, mu, speaker, cond), cache.estimator_span(rows, step)
        assert one_launch is None or one_launch.fits(span, 2 * count, frames)
        estimator.euler_step(state, inputs, step, tables, span)
        out.append(state - x)
    for row, length in enumerate((2 * rows.length).tolist()):
        if length:
            assert relative(*(part[row, :length] for part in out)) < 2e-2, row
    assert out[0].isfinite().all()
    scratch = 2 * len(flow.times)  # pages of block 0
    keys = [cache.keys.data[:, :, scratch:] - before[:, :, scratch:] for cache in caches]
    assert torch.equal(*(part.ne(0).any(-1) for part in keys))  # the same places are written
    if rows.length.any():
        assert relative(*keys) < 2e-2
    return caches


@pytest.mark.parametrize("frames", [50, 36, 22])
def test_the_u_nets_stages_in_one_launch_do_what_many_launches_do(frames: int) -> None:
    """Rows: a first chunk, an end inside a chunk after shared pages, another after more pages, one of a single
    frame, and padding. What is left in pages and tails is compared, too."""
    from tts_engine.cosyvoice.kernels.fused_unet import FusedUNet

    flow = perturbed(FlowV2(FlowV2Config()))
    flow.prepare()
    flow.decoder.estimator = FusedUNet(flow.to(DEVICE).estimator, device=DEVICE)
    blocks = torch.tensor([[1, 0, 0, 0, 0, 0], [3, 7, 2, 0, 0, 0], [3, 7, 5, 9, 4, 6], [8] + 5 * [0], 6 * [0]])
    n = frames // 2
    rows = FlowRows(
        slots=torch.tensor([1, 2, 3, 4, 0], device=DEVICE),
        blocks=blocks.to(DEVICE),
        start=torch.tensor([0, 50, 125, 0, 0], device=DEVICE),
        length=torch.tensor([n, n - 9, n, 1, 0], device=DEVICE),
    )
    step = torch.tensor([0, 3, 9, 5, 0], device=DEVICE)
    caches = _one_launch_does_what_many_do(flow, "blocks", rows, step, frames)
    scratch = 2 * len(flow.times)  # slots of block 0
    for one, many in zip(*(cache.tails.data for cache in caches), strict=True):
        assert relative(one[scratch:], many[scratch:]) < 2e-2


@pytest.mark.parametrize(
    ("frames", "start", "length"),
    [
        (22, 225, 11),  # behind more pages than are in shared memory at a time
        (22, 75, 7),
        (24, 0, 12),
        (8, 25, 1),
        (22, 0, 0),  # padding
    ],
)
def test_the_dits_blocks_in_one_launch_do_what_many_launches_do(frames: int, start: int, length: int) -> None:
    """The contents of the pages are compared, too."""
    from tts_engine.cosyvoice.kernels.fused_dit import FusedDiT

    flow = perturbed(FlowV3(FlowV3Config()))
    flow.prepare()
    flow.decoder.estimator = FusedDiT(flow.to(DEVICE).estimator, device=DEVICE)
    real = int(length > 0)
    rows = FlowRows(
        slots=torch.tensor([real], device=DEVICE),
        blocks=torch.tensor([[3, 7, 5, 9, 4, 6, 2, 1, 8, 10]], device=DEVICE) * real,
        start=torch.tensor([start], device=DEVICE),
        length=torch.tensor([length], device=DEVICE),
    )
    _one_launch_does_what_many_do(flow, "one_launch", rows, torch.tensor([3], device=DEVICE), frames)


# -- the vocoder -------------------------------------------------------------------------------------------------------


def _sound(hift: Hift | CausalHift, mel: Tensor, feeds: list[list[int]]) -> list[Tensor]:
    """The samples of each row of ``mel``, fed in pieces of these lengths; the last piece ends every stream."""
    rows = len(mel)
    cache = hift.new_cache(slots=rows + 1, device=DEVICE)
    slots = torch.arange(1, rows + 1, device=DEVICE)
    cache.reset(slots)
    fed = [0] * rows
    sound: list[list[Tensor]] = [[] for _ in range(rows)]
    for number, lengths in enumerate(feeds):
        final = number == len(feeds) - 1
        piece = torch.zeros(rows, max(lengths), 80, device=DEVICE)
        for row, length in enumerate(lengths):
            piece[row, :length] = mel[row, fed[row] : fed[row] + length]
        ends = torch.full((rows,), final, device=DEVICE)
        samples = hift(piece, torch.tensor(lengths, device=DEVICE), slots, cache, ends)
        for row, length in enumerate(lengths):
            begin, end = hift.valid(before=fed[row], frames=length, final=final)
            sound[row].append(samples[row, begin:end])
            fed[row] += length
    return [torch.cat(pieces) for pieces in sound]


@VERSIONS
def test_the_fused_vocoder_gives_the_sound_of_the_plain_one(version: Version) -> None:
    from tts_engine.cosyvoice.kernels.fused_hift import fuse

    kind = Hift if version == 2 else CausalHift
    hift = perturbed(kind(HiftConfig(causal=version == 3), noise_seconds=10))
    if version == 3:
        hift.f0_predictor.double()
    mel = torch.randn(2, 100, 80, device=DEVICE)
    feeds = [[50, 44], [50, 30]]
    want = _sound(hift, mel, feeds)
    got = _sound(fuse(hift), mel, feeds)
    errors = [relative(one, other) for one, other in zip(got, want, strict=True)]
    assert max(errors) < 1e-2, errors


# -- token to wave -----------------------------------------------------------------------------------------------------


def _batches() -> list[tuple[Shape, list[BatchRow]]]:
    """Two clauses begin; one continues, the other ends within a chunk; then the first ends by full attention."""
    rng = np.random.default_rng(3)
    first, second = (rng.integers(0, 6561, n).tolist() for n in (60, 36))
    begins: Any = {"length": 25, "valid": 28, "frames": 50, "begins": True}
    short = BatchRow(slot=1, length=11, valid=14, frames=22, begins=True, blocks=[1], tokens=first[:14])
    return [
        ("chunk", [short]),  # a short first chunk of the first clause, which then begins anew
        (
            "chunk",
            [
                BatchRow(slot=1, blocks=[1], tokens=first[:28], **begins),
                BatchRow(slot=2, blocks=[2], tokens=second[:28], **begins),
            ],
        ),
        (
            "chunk",
            [
                BatchRow(slot=1, start=25, length=25, valid=28, frames=50, blocks=[1, 3], tokens=first[25:53]),
                BatchRow(
                    slot=2, start=25, length=11, valid=11, frames=22, final=True, blocks=[2, 4], tokens=second[25:]
                ),
            ],
        ),
        ("whole", [BatchRow(slot=1, length=60, valid=60, frames=20, skip=100, final=True, tokens=first)]),
    ]


@VERSIONS
@pytest.mark.parametrize("staged", [False, True], ids=["at once", "in stages"])
def test_batches_from_graphs_sound_as_the_same_batches_without_graphs(version: Version, staged: bool) -> None:
    """Networks, precision and shapes are those that an engine runs on a GPU. Between stages, and before the device has
    ended, another clause begins."""
    from tts_engine.cosyvoice.kernels.fused_hift import fuse

    flow = perturbed(FlowV2(FlowV2Config()) if version == 2 else FlowV3(FlowV3Config()))
    flow.prepare()
    flow.to(DEVICE)
    _fuse(flow, torch.bfloat16)
    kind = Hift if version == 2 else CausalHift
    hift = perturbed(kind(HiftConfig(causal=version == 3), noise_seconds=10))
    if version == 3:
        hift.f0_predictor.double()
    vocoder = fuse(hift)
    config = RunnerConfig(
        blocks=10, max_chunks=8, max_voices=1, dtype=torch.bfloat16,
        chunk_rows=(1, 2), staged_rows=(2,), whole_rows=(1,), whole_chunks=(3,),
    )  # fmt: skip
    settings = CosyVoiceConfig(max_clauses=3)
    graphs, eager = (ModelRunner(flow, vocoder, device=DEVICE, settings=settings, config=config) for _ in range(2))
    calibrated: list[int] = []
    graphs.warm_up(lambda length, rows, seconds: calibrated.append(length))
    assert calibrated == [25, 25, 18, 18, 11, 11]
    other = BatchRow(slot=3, length=25, valid=28, frames=50, begins=True, blocks=[5], tokens=list(range(28)))

    def sound(runner: ModelRunner, shape: Shape, rows: Sequence[BatchRow], between: Callable[[], object]) -> Tensor:
        """The device is given each stage, and the next batch, before it has ended with the last. Nothing
        waits for the stream that others use."""
        torch.cuda._sleep(100_000_000)  # clocks: some 50 ms
        run = runner.begin(shape, rows, staged=staged)
        for stage in range(1, run.stages):
            run.await_nearly_done()
            between()
            run.go_on(stage)
        run.read()
        run.await_nearly_done()
        between()
        return torch.from_numpy(run.result()[0])

    for shape, rows in _batches():
        sounds = [
            sound(graphs, shape, rows, lambda: graphs.begin("chunk", [other], staged=False)),
            sound(eager, shape, rows, lambda: None),
        ]
        assert relative(*sounds) < 1e-3, (shape, relative(*sounds))
        assert sounds[1].abs().max() > 1e-3
    assert all(batch.graphs for batch in (*graphs.batches.values(), *graphs.staged_batches.values()))
    assert not any(batch.graphs for batch in (*eager.batches.values(), *eager.staged_batches.values()))
