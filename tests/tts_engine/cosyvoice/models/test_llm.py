"""The language models against upstream's numbers: layout, hidden states, logits, generation, text streaming."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from tests.tts_engine.cosyvoice.models.goldens import VERSIONS, deviation, llm_config, read_json, tensors
from tts_engine.cosyvoice.lm.bistream import Bistream, Item, PositionKind, UnexpectedControlId
from tts_engine.cosyvoice.models.config import SamplingConfig
from tts_engine.cosyvoice.models.llm import KeyValueCache, SpeechLanguageModel
from tts_engine.cosyvoice.sampling import ras, stop_mask


@functools.cache
def model(version: int) -> SpeechLanguageModel:
    network = SpeechLanguageModel(llm_config(version))
    state = {name: value for name, value in tensors(version, "llm").items() if "lm_head" not in name}
    network.load_state_dict(state)
    return network.eval().requires_grad_(False)


@pytest.fixture(params=VERSIONS, ids=["v2", "v3"])
def version(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


def ids(version: int, name: str) -> list[int]:
    values: list[int] = tensors(version, "io_llm")[name].flatten().tolist()
    return values


def start(*positions: int) -> Tensor:
    return torch.tensor(positions)


def test_sequence_layout(version: int) -> None:
    lm, io = model(version), tensors(version, "io_llm")
    text, prompt, speech = (ids(version, name) for name in ("text", "prompt_text", "prompt_speech_token"))
    assert torch.equal(lm.prompt(prompt, text, speech), io["lm_input.zero_shot"])
    assert torch.equal(lm.prompt([], prompt + text, []), io["lm_input.cross_lingual"])
    assert torch.equal(lm.prompt(prompt, text, []), io["lm_input.instruct2"])


def test_teacher_forced_logits(version: int) -> None:
    lm, io = model(version), tensors(version, "io_llm")
    cache = KeyValueCache(lm.config, slots=1, max_length=80)
    prompt = io["lm_input.zero_shot"]
    hidden = lm(prompt[None], start(0), cache)
    assert deviation(hidden[0], io["hidden_prefill"]) < 1e-4
    steps = [hidden[:, -1]]
    for i, token in enumerate(io["forced_tokens"][0].long()):
        steps.append(lm(lm.embed_speech(token[None, None]), start(len(prompt) + i), cache)[:, 0])
    hidden = torch.cat(steps)
    assert deviation(hidden, io["hidden_steps"]) < 1e-4
    assert deviation(lm.logits(hidden), io["logits_steps"]) < 1e-4
    whole = torch.cat([prompt, lm.embed_speech(io["forced_tokens"][0].long())])[None]
    hidden = lm(whole, start(0), KeyValueCache(lm.config, slots=1, max_length=80))
    assert deviation(lm.logits(hidden[0, len(prompt) - 1 :]), io["logits_full"]) < 1e-4


def test_rows_of_different_lengths_equal_each_alone(version: int) -> None:
    """Padded prefill into any slots, then batched steps with and without slot numbers."""
    lm, io = model(version), tensors(version, "io_llm")
    prompts = [io["lm_input.zero_shot"], io["lm_input.instruct2"], io["lm_input.zero_shot"][:9]]
    forced = io["forced_tokens"][0].long()

    def alone(prompt: Tensor) -> Tensor:
        whole = torch.cat([prompt, lm.embed_speech(forced)])[None]
        hidden = lm(whole, start(0), KeyValueCache(lm.config, slots=1, max_length=80))
        return lm.logits(hidden[0, len(prompt) - 1 :])

    for slots in (torch.tensor([4, 1, 2]), None):
        cache = KeyValueCache(lm.config, slots=5, max_length=80)
        x = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True)
        lengths = torch.tensor([len(p) for p in prompts])
        hidden = lm(x, torch.zeros_like(lengths), cache, slots=slots)
        got = [lm.logits(hidden[torch.arange(3), lengths - 1])]
        for i, token in enumerate(forced):
            x = lm.embed_speech(token.expand(3, 1))
            got.append(lm.logits(lm(x, lengths + i, cache, slots=slots, keys=int(lengths.max()) + i + 1)[:, 0]))
        for row, prompt in enumerate(prompts):
            assert deviation(torch.stack(got)[:, row], alone(prompt)) < 1e-4


def test_a_shared_prefix_is_copied_not_computed(version: int) -> None:
    lm, io = model(version), tensors(version, "io_llm")
    prompt = io["lm_input.zero_shot"]
    cache = KeyValueCache(lm.config, slots=3, max_length=80)
    lm(prompt[None, :12], start(0), cache, slots=start(0))
    cache.copy_prefix(0, torch.tensor([1, 2]), 12)
    hidden = lm(prompt[None, 12:].expand(2, -1, -1), start(12, 12), cache, slots=start(1, 2))
    for row in hidden:
        assert deviation(row, io["hidden_prefill"][12:]) < 1e-4


def test_ras_draws_upstreams_ids(version: int) -> None:
    io = tensors(version, "io_llm")
    got, draws = ras(io["ras.scores"], io["ras.history"], io["ras.uniforms"], SamplingConfig())
    assert torch.equal(got, io["ras.token"])
    assert torch.equal(draws, io["ras.draws_used"])


class Sampler:
    """RAS fed with the golden list of uniforms."""

    def __init__(self, version: int, uniforms: Tensor) -> None:
        self.uniforms, self.used = torch.cat([uniforms, torch.zeros(2).double()]), 0
        self.mask = stop_mask(llm_config(version), upstream=True)

    def __call__(self, logits: Tensor, history: list[int], *, may_end: bool) -> int:
        if not may_end:
            logits = logits.masked_fill(self.mask, float("-inf"))
        window = torch.tensor([([-1] * 10 + history)[-10:]])
        token, draws = ras(logits[None], window, self.uniforms[None, self.used : self.used + 2], SamplingConfig())
        self.used += int(draws)
        return int(token)


@pytest.mark.parametrize("name", ["zero_shot", "cross_lingual", "instruct2_maxlen", "zero_shot_stop"])
def test_generation(version: int, name: str) -> None:
    lm, io = model(version), tensors(version, "io_llm")
    text = ids(version, f"gen.{name}.text")
    least, most = SamplingConfig().lengths(len(text))
    want = ids(version, f"gen.{name}.tokens")
    assert [least, most] == [read_json(version, "meta.json")["llm"][f"gen.{name}"][k] for k in ("min_len", "max_len")]
    x = lm.prompt(ids(version, f"gen.{name}.prompt_text"), text, ids(version, f"gen.{name}.prompt_speech_token"))[None]
    sample = Sampler(version, io[f"gen.{name}.uniforms"])
    cache = KeyValueCache(lm.config, slots=1, max_length=320)
    out: list[int] = []
    fed = 0
    while len(out) < min(most, 160):
        hidden = lm(x, start(fed), cache)
        fed += x.shape[1]
        token = sample(lm.logits(hidden[0, -1]), out, may_end=len(out) >= least)
        if token in lm.config.stop_ids:
            break
        out.append(token)
        x = lm.embed_speech(torch.tensor([[token]]))
    assert out == want
    assert sample.used == len(io[f"gen.{name}.uniforms"])


def embed(lm: SpeechLanguageModel, item: Item) -> Tensor:
    match item.kind:
        case PositionKind.SOS:
            return lm.sos
        case PositionKind.TASK:
            return lm.task
        case PositionKind.TEXT:
            return lm.embed_text(torch.tensor([item.id]))
        case PositionKind.SPEECH:
            return lm.embed_speech(torch.tensor([item.id]))


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("text_ids_at_once", [1, 19])
def test_bistream_generation(version: int, number: int, text_ids_at_once: int) -> None:
    lm, io = model(version), tensors(version, "io_llm")
    case = f"bistream{number}"
    text = ids(version, f"{case}.text")
    machine = Bistream(
        lm.config,
        prompt_text=ids(version, f"{case}.prompt_text"),
        prompt_speech=ids(version, f"{case}.prompt_speech_token"),
    )
    sample = Sampler(version, io[f"{case}.uniforms"])
    cache = KeyValueCache(lm.config, slots=1, max_length=320)
    feed_lengths: list[int] = []
    out: list[int] = []

    def run() -> None:
        while len(out) < 120 and (feed := machine.next()) is not None:
            x = torch.cat([embed(lm, item) for item in feed.items])[None]
            hidden = lm(x, start(sum(feed_lengths)), cache)
            feed_lengths.append(x.shape[1])
            if feed.forced is None:
                token = sample(lm.logits(hidden[0, -1]), machine.history, may_end=feed.may_end)
            else:
                token = feed.forced
            if (speech := machine.drawn(token)) is not None:
                out.append(speech)

    for first in range(0, len(text), text_ids_at_once):
        machine.push_text(text[first : first + text_ids_at_once])
        run()
    machine.end_text()
    run()
    assert feed_lengths == ids(version, f"{case}.feed_lengths")
    assert out == ids(version, f"{case}.tokens")


def test_bistream_refuses_a_control_id_out_of_place() -> None:
    config = llm_config(3)
    machine = Bistream(config, prompt_text=[1, config.end_of_prompt_id], prompt_speech=[])
    machine.push_text([5])
    assert machine.next() is not None
    with pytest.raises(UnexpectedControlId, match=f"drew control id {config.eos}, expected {config.fill}"):
        machine.drawn(config.eos)


def test_bistream_of_v3_needs_the_end_of_the_prompt() -> None:
    with pytest.raises(ValueError, match="endofprompt"):
        Bistream(llm_config(3), prompt_text=[1, 2], prompt_speech=[])
