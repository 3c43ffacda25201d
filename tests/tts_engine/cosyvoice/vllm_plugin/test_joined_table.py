import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from tts_engine.cosyvoice.vllm_plugin.joined_table import JoinedTable, export_vllm  # noqa: E402
from tts_engine.errors import SynthesisFailed  # noqa: E402

GOLDENS = Path(__file__).parents[3] / "goldens/cosyvoice"
VERSIONS = ["v2", "v3"]


def export(version: str, folder: Path) -> JoinedTable:
    golden = json.loads((GOLDENS / version / "config.json").read_text())
    return export_vllm(
        load_file(GOLDENS / version / "llm.safetensors"),
        {**golden["llm"], "eos_token_id": 5},
        folder,
        speech_tokens=golden["speech_token_size"],
        dtype=torch.float32,
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ["zero_shot", "cross_lingual", "instruct2"])
def test_joined_ids_look_up_the_golden_prompt_exactly(version: str, mode: str, tmp_path: Path) -> None:
    table = export(version, tmp_path)
    io = load_file(GOLDENS / version / "io_llm.safetensors")
    prompt_text, text, speech = (io[k][0].numpy() for k in ("prompt_text", "text", "prompt_speech_token"))
    if mode == "cross_lingual":
        text, prompt_text = np.concatenate([prompt_text, text]), prompt_text[:0]
    if mode != "zero_shot":
        speech = speech[:0]
    rows = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(rows[table.prompt(prompt_text, text, speech)], io[f"lm_input.{mode}"])


@pytest.mark.parametrize("version", VERSIONS)
def test_exported_folder_has_the_head_and_no_text_end(version: str, tmp_path: Path) -> None:
    table = export(version, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    assert weights["lm_head.weight"].shape[0] == config["speech_vocab_size"] == table.head_size
    assert ("lm_head.bias" in weights) == config["speech_head_bias"] == (version == "v2")
    assert weights["model.embed_tokens.weight"].shape[0] == config["vocab_size"] == table.size
    assert "model.norm.weight" in weights and "model.layers.0.self_attn.q_proj.bias" in weights
    assert "eos_token_id" not in config and not config["tie_word_embeddings"]
    assert table.stop_ids == list(range(729, table.head_size))
    assert JoinedTable.load(tmp_path) == table


def test_ids_beyond_their_table_are_refused(tmp_path: Path) -> None:
    table = export("v2", tmp_path)
    none = np.zeros(0, np.int32)
    with pytest.raises(SynthesisFailed, match="text id 512"):
        table.prompt(none, np.array([512]), none)
    with pytest.raises(SynthesisFailed, match="speech id 729"):
        table.prompt(none, none, np.array([729]))


def test_missing_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(SynthesisFailed, match="lack llm_decoder.weight"):
        weights = load_file(GOLDENS / "v3/llm.safetensors")
        del weights["llm_decoder.weight"]
        export_vllm(weights, {}, tmp_path)
