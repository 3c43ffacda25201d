"""Model directories: made with random weights, read strictly, refused with reasons."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.tts_engine.cosyvoice.models.goldens import VERSIONS, tensors
from tts_engine.cosyvoice import checkpoint
from tts_engine.cosyvoice.frontend.spk2info import read_spk2info
from tts_engine.cosyvoice.frontend.tokenizer import CosyTokenizer
from tts_engine.cosyvoice.models.config import CheckpointConfig, FlowV2Config, FlowV3Config, SamplingConfig
from tts_engine.cosyvoice.models.llm import KeyValueCache
from tts_engine.cosyvoice.models.streaming import Span
from tts_engine.cosyvoice.sampling import push, ras, stop_mask
from tts_engine.cosyvoice.weights import (
    CheckpointError,
    Model,
    load,
    make_network,
    official_state,
    read_config,
    read_state,
)
from tts_engine.onnx_runtime import onnxruntime


@pytest.fixture(scope="module", params=VERSIONS, ids=["v2", "v3"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CheckpointConfig]:
    folder = tmp_path_factory.mktemp("model") / "m"
    return folder, checkpoint.make(folder, request.param, "tiny", 7)


@pytest.fixture
def copy(made: tuple[Path, CheckpointConfig], tmp_path: Path) -> Path:
    shutil.copytree(made[0], tmp_path / "copy")
    return tmp_path / "copy"


def load_small(folder: Path, **options: Any) -> Model:
    return load(folder, noise_seconds=1, **options)  # type: ignore[arg-type]


def test_configuration_comes_back(made: tuple[Path, CheckpointConfig]) -> None:
    folder, config = made
    assert read_config(folder) == config
    assert config.random_weights
    assert "RANDOM WEIGHTS" in (folder / checkpoint.MARKER).read_text()
    tokenizer = CosyTokenizer.load(folder / "CosyVoice-BlankEN", version=config.version)
    assert tokenizer.end_of_prompt_id == config.llm.end_of_prompt_id
    assert tokenizer.size <= config.llm.vocab_size


def test_same_seed_same_weights(made: tuple[Path, CheckpointConfig], tmp_path: Path) -> None:
    folder, config = made
    checkpoint.make(tmp_path / "again", config.version, "tiny", 7)
    checkpoint.make(tmp_path / "other", config.version, "tiny", 8)
    name = "spk_embed_affine_layer.weight"
    first, again, other = (read_state(f / "flow.pt")[name] for f in (folder, tmp_path / "again", tmp_path / "other"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_full_directory_is_not_overwritten(made: tuple[Path, CheckpointConfig]) -> None:
    with pytest.raises(FileExistsError, match="not empty"):
        checkpoint.make(made[0], 2)


def test_layout_is_that_of_the_published_checkpoints(made: tuple[Path, CheckpointConfig]) -> None:
    """The golden state dicts carry the official names: same names here, up to how often each is repeated."""
    folder, config = made

    def kinds(names: object) -> set[str]:
        return {".".join("#" if part.isdigit() else part for part in name.split(".")) for name in names}  # type: ignore[attr-defined]

    for part in ("llm", "flow", "hift"):
        assert kinds(read_state(folder / f"{part}.pt")) == kinds(tensors(config.version, part))


@pytest.mark.parametrize(("version", "counts"), [(2, (294, 1121, 328)), (3, (292, 330, 328))])
def test_full_size_has_the_published_number_of_tensors(
    version: int, counts: tuple[int, int, int], tmp_path: Path
) -> None:
    """Counted without values: key counts and parameter totals of the published files."""
    config = checkpoint._write_tokenizer(tmp_path, version, checkpoint._SIZES["full"])  # type: ignore[arg-type]
    assert config.llm.end_of_prompt_id == 151646
    states = [make_network(config, part, noise_seconds=1).state_dict() for part in ("llm", "flow", "hift")]
    states[2] = checkpoint._unfold_weight_norm(states[2])
    assert tuple(len(s) for s in states) == counts
    values = [sum(v.numel() for v in s.values()) for s in states[1:]]
    assert values == ([112_549_360, 20_821_295] if version == 2 else [332_257_120, 20_779_887])


def test_small_differences_stay_small(made: tuple[Path, CheckpointConfig]) -> None:
    """Random networks can be chaotic; then no comparison of two ways to compute would mean anything."""
    flow = load_small(made[0], parts=("flow",)).flow
    assert flow
    generator = torch.Generator().manual_seed(3)
    x, mu, change = (torch.randn(1, 60, 80, generator=generator) for _ in range(3))
    span = Span.whole(torch.tensor([60]), chunk=50)
    rest = (mu, torch.randn(1, 80, generator=generator), torch.zeros(1, 60, 80), flow.modulations[3:4], span)
    velocity = flow.estimator(x, *rest)
    moved = flow.estimator(x + 1e-4 * change, *rest) - velocity
    assert 0.1 < velocity.std() < 10
    assert 1e-3 < moved.norm() / (1e-4 * change.norm()) < 10


def test_loads_and_speaks(made: tuple[Path, CheckpointConfig]) -> None:
    """Text ids to sound, through everything that is in the directory."""
    folder, config = made
    model = load_small(folder)
    assert model.llm and model.flow and model.hift
    tokenizer = CosyTokenizer.load(folder / "CosyVoice-BlankEN", version=config.version)
    voice = read_spk2info(folder / "spk2info.pt", tokenizer)[checkpoint.VOICE]
    assert len(voice.flow_tokens) == 53
    prompt = tokenizer.encode("<|endofprompt|>" + voice.transcript)
    text = tokenizer.encode("Hello, you.")
    least, most = config.llm.sampling.lengths(len(text))
    rows = 8
    cache = KeyValueCache(model.llm.config, slots=rows, max_length=600)
    x = model.llm.prompt(prompt, text, voice.lm_tokens.tolist()).expand(rows, -1, -1)
    position = torch.zeros(rows, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    history = torch.full((rows, config.llm.sampling.window), -1)
    ended = torch.full((rows,), most)
    ids = []
    for i in range(most):
        logits = model.llm.logits(model.llm(x, position, cache)[:, -1])
        position = position + x.shape[1]
        if i < least:
            logits = logits.masked_fill(stop_mask(config.llm), float("-inf"))
        drawn, _ = ras(
            logits, history, torch.rand(rows, 2, generator=generator, dtype=torch.float64), config.llm.sampling
        )
        history = push(history, drawn)
        ended = torch.where((drawn >= config.llm.speech_token_size) & (ended == most), i, ended)
        ids.append(drawn)
        x = model.llm.embed_speech(drawn[:, None])
    assert least <= int(ended.min()) < int(ended.max())  # not all at once
    assert int(ended.median()) < most  # nor never

    speech = torch.stack(ids)[:least, 0]
    tokens = torch.cat([torch.from_numpy(voice.flow_tokens).long(), speech])[None]
    mel = model.flow.render(
        tokens,
        torch.tensor([tokens.shape[1]]),
        torch.from_numpy(voice.flow_mel)[None],
        torch.tensor([len(voice.flow_mel)]),
        torch.from_numpy(voice.speaker)[None],
        streaming=True,
        final=True,
    )[:, len(voice.flow_mel) :]
    assert mel.shape == (1, 2 * least, 80)
    vocoder = model.hift.new_cache(slots=2)
    wav = model.hift(mel, torch.tensor([2 * least]), torch.tensor([1]), vocoder, torch.tensor([True]))
    begin, end = model.hift.valid(before=0, frames=2 * least, final=True)
    wav = wav[:, begin:end]
    assert 1e-3 < wav.std() < 0.3  # audible, and does not clip all the time
    assert (wav.abs() > 0.98).float().mean() < 0.01


def test_onnx_stand_ins_have_the_official_signatures(made: tuple[Path, CheckpointConfig]) -> None:
    folder, config = made
    session = onnxruntime.InferenceSession(folder / f"speech_tokenizer_v{config.version}.onnx")
    rng = np.random.default_rng(0)
    mel = rng.standard_normal((1, 128, 401)).astype(np.float32)
    names = [value.name for value in session.get_inputs()]
    (ids,) = session.run(None, dict(zip(names, (mel, np.array([401], np.int32)), strict=True)))
    assert ids.shape == (1, 100)
    assert 0 <= ids.min() and ids.max() < config.llm.speech_token_size
    assert len(set(ids[0].tolist())) > 50
    session = onnxruntime.InferenceSession(folder / "campplus.onnx")
    (vector,) = session.run(None, {session.get_inputs()[0].name: rng.standard_normal((1, 200, 80)).astype(np.float32)})
    assert vector.shape == (1, 192)
    assert vector.std() > 0


def test_safetensors_and_prefixed_vocoder_load_alike(copy: Path) -> None:
    want = load_small(copy)
    flow = read_state(copy / "flow.pt")
    save_file({name: value.clone() for name, value in flow.items()}, copy / "flow.safetensors")
    (copy / "flow.pt").unlink()
    torch.save({f"generator.{k}": v.clone() for k, v in read_state(copy / "hift.pt").items()}, copy / "hift.new")
    (copy / "hift.new").replace(copy / "hift.pt")
    got = load_small(copy)
    for part in ("flow", "hift"):
        first, second = getattr(want, part).state_dict(), getattr(got, part).state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_reinforcement_tuned_weights_are_a_choice(copy: Path) -> None:
    state = {k: v.clone() for k, v in read_state(copy / "llm.pt").items()}
    state["llm.model.model.norm.weight"] += 1
    torch.save(state, copy / "llm.rl.pt")
    plain, tuned = (load_small(copy, llm_weights=w, parts=("llm",)).llm for w in ("llm", "llm.rl"))
    assert plain and tuned
    assert torch.equal(tuned.backbone.norm.weight, plain.backbone.norm.weight + 1)


def test_precision_is_chosen_by_part_and_tables_keep_theirs(made: tuple[Path, CheckpointConfig]) -> None:
    model = load_small(made[0], llm_dtype=torch.bfloat16, flow_dtype=torch.bfloat16)
    assert model.llm and model.flow and model.hift
    assert {p.dtype for p in model.llm.parameters()} == {torch.bfloat16}
    assert model.flow.encoder_proj.weight.dtype == torch.bfloat16 if isinstance(made[1].flow, FlowV2Config) else True
    assert model.flow.modulations.dtype == model.flow.noise.dtype == torch.float32
    f0 = next(model.hift.f0_predictor.parameters())
    assert f0.dtype == (torch.float64 if made[1].version == 3 else torch.float32)


def test_time_weights_can_be_dropped(made: tuple[Path, CheckpointConfig]) -> None:
    folder, config = made
    model = load_small(folder, parts=("flow",))
    assert model.flow and model.llm is None and model.hift is None
    arguments = (
        torch.arange(20)[None],
        torch.tensor([20]),
        torch.zeros(1, 0, 80),
        torch.tensor([0]),
        torch.randn(1, 192),
    )
    before = model.flow.render(*arguments, streaming=True, final=True)
    count = sum(p.numel() for p in model.flow.estimator.parameters())
    model.flow.estimator.drop_time_weights()
    left = sum(p.numel() for p in model.flow.estimator.parameters())
    assert left < count * (0.7 if isinstance(config.flow, FlowV3Config) else 1)
    assert torch.equal(model.flow.render(*arguments, streaming=True, final=True), before)


def test_one_error_names_everything_wrong(copy: Path) -> None:
    flow = {k: v.clone() for k, v in read_state(copy / "flow.pt").items()}
    del flow["spk_embed_affine_layer.bias"]
    flow["surplus.weight"] = torch.zeros(3)
    flow["input_embedding.weight"] = torch.zeros(5, 80)
    torch.save(flow, copy / "flow.pt")
    (copy / "hift.pt").unlink()
    (copy / "campplus.onnx").unlink()
    (copy / "llm.pt").write_bytes(b"PK\x03\x04 not a checkpoint")
    with pytest.raises(CheckpointError) as caught:
        load_small(copy)
    message = str(caught.value)
    for fault in (
        "flow.pt: missing spk_embed_affine_layer.bias [80]",
        "flow.pt: unexpected surplus.weight [3]",
        "flow.pt: input_embedding.weight has shape [5, 80], expected [6561,",
        "missing: hift.pt",
        "missing: campplus.onnx",
        "llm.pt: not readable as weights",
    ):
        assert fault in message
    assert str(copy) in message


def test_the_checkpoints_own_sampling_is_taken(copy: Path) -> None:
    path = next(copy.glob("cosyvoice*.yaml"))
    text = path.read_text().replace("top_p: 0.8", "top_p: 0.9").replace("top_k: 25", "top_k: 40")
    path.write_text(text.replace("win_size: 10", "win_size: 16").replace("tau_r: 0.1", "tau_r: 0.25"))
    sampling = read_config(copy).llm.sampling
    assert sampling == SamplingConfig(top_p=0.9, top_k=40, window=16, tau_r=0.25)
    assert sampling.least_repeats == 4


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("top_p: 0.8", "top_p: 1.5", "llm.sampling.top_p is 1.5, expected 1e-06 to 1.0"),
        ("top_k: 25", "top_k: 0", "llm.sampling.top_k is 0, expected 1 to 128"),
        ("win_size: 10", "win_size: 1000", "llm.sampling.win_size is 1000, expected 1 to 128"),
        ("tau_r: 0.1", "tau_r: often", "llm.sampling.tau_r is 'often', expected float"),
    ],
)
def test_sampling_that_no_sampler_can_do_is_refused(copy: Path, before: str, after: str, fault: str) -> None:
    path = next(copy.glob("cosyvoice*.yaml"))
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(CheckpointError, match=re.escape(fault)):
        read_config(copy)


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"(?s)missing: cosyvoice2.yaml or cosyvoice3.yaml.*missing: llm.pt"):
        load(tmp_path)


def test_wrong_values_in_the_configuration_are_named(copy: Path) -> None:
    path = next(copy.glob("cosyvoice?.yaml"))
    text = path.read_text().replace("sample_rate: 24000", "sample_rate: 22050").replace("base_channels: 32", "base: 1")
    path.write_text(text)
    with pytest.raises(CheckpointError) as caught:
        load_small(copy)
    assert "sample_rate is 22050, only 24000 is supported" in str(caught.value)
    assert "hift.base_channels is missing, expected int" in str(caught.value)


def test_code_in_files_is_not_run(copy: Path, tmp_path: Path) -> None:
    """Neither in YAML tags nor in pickles."""
    witness = tmp_path / "witness"

    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (witness,))  # type: ignore[return-value]

    path = next(copy.glob("cosyvoice?.yaml"))
    path.write_text(path.read_text() + f"\nhook: !!python/object/apply:os.mkdir ['{witness}']\n")
    with pytest.raises(CheckpointError, match="not readable as YAML"):
        load_small(copy)
    path.write_text(path.read_text().replace("!!python/object/apply:", "!apply:"))
    torch.save({"x": Payload()}, copy / "flow.pt")
    with pytest.raises(CheckpointError, match="flow.pt: not readable as weights"):
        load_small(copy)
    assert not witness.exists()


def test_unused_text_head_may_be_absent() -> None:
    state = {"llm.model.lm_head.weight": torch.zeros(1), "llm_decoder.weight": torch.zeros(1)}
    assert list(official_state("llm", state, version=2)) == ["llm_decoder.weight"]
