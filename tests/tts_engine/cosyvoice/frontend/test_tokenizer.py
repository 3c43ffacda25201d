import json
from pathlib import Path

import pytest

from tts_engine.cosyvoice.frontend.tokenizer import CosyTokenizer, Version, make_tiny_tokenizer, special_tokens
from tts_engine.errors import SynthesisFailed


@pytest.fixture(scope="module", params=[2, 3])
def tokenizer(request: pytest.FixtureRequest, model_folder: Path) -> CosyTokenizer:
    return CosyTokenizer.load(model_folder / "CosyVoice-BlankEN", version=request.param)


def test_added_tokens_follow_the_official_vocabulary_at_their_known_ids() -> None:
    official = 151_643
    ids = {token: official + index for index, token in enumerate(special_tokens(3))}
    assert len(special_tokens(2)) == 20 and len(ids) == 281
    assert ids["<|endofprompt|>"] == 151_646
    assert ids["[laughter]"] == 151_651
    assert ids["[mn]"] == 151_662  # the last of version 2
    assert ids["<|endofsystem|>"] == 151_663
    assert ids["[AA]"] == 151_664
    assert ids["[ǜ]"] == 151_923
    assert special_tokens(2)[-1] == "[mn]"


def test_a_vocabulary_of_the_official_size_gives_the_official_ids() -> None:
    vocab = {f"x{index}": index for index in range(151_643)}
    tokenizer = CosyTokenizer(vocab, [], version=3)
    assert tokenizer.end_of_prompt_id == 151_646
    assert tokenizer.special_ids["[ǐ]"] == 151_913
    assert tokenizer.size == 151_924


@pytest.mark.parametrize(
    "text",
    [
        "Hello, thank you for calling.",
        "您好，订单号 12345",
        "naïve 😀 ok",
        "two  spaces\n\nlines ",
        "I'll pay 45.20",
        "",
    ],
)
def test_any_text_survives_encoding(tokenizer: CosyTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_merges_apply_within_words_and_digits_stay_single(tokenizer: CosyTokenizer) -> None:
    assert len(tokenizer.encode("the")) == 1
    assert len(tokenizer.encode(" hello")) == 1
    assert len(tokenizer.encode("123")) == 3


def test_inline_controls_become_one_id(tokenizer: CosyTokenizer) -> None:
    ids = tokenizer.encode("a[laughter]<strong>b</strong>")
    assert [tokenizer.special_ids[t] for t in ("[laughter]", "<strong>", "</strong>")] == [ids[1], ids[2], ids[4]]
    assert len(ids) == 5


def test_phonemes_are_controls_in_version_3_only(model_folder: Path) -> None:
    versions: list[Version] = [2, 3]
    lengths = [
        len(CosyTokenizer.load(model_folder / "CosyVoice-BlankEN", version=v).encode("[j][ǐ]")) for v in versions
    ]
    assert lengths[1] == 2 < lengths[0]


def test_decomposed_accents_encode_like_composed_ones(tokenizer: CosyTokenizer) -> None:
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")


def test_config_names_enough_rows_for_every_id(tmp_path: Path) -> None:
    base = make_tiny_tokenizer(tmp_path, config={"hidden_size": 64})
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["hidden_size"] == 64 and config["model_type"] == "qwen2"
    assert config["vocab_size"] == CosyTokenizer.load(tmp_path, version=3).size == base + 281


def test_missing_file_is_named(tmp_path: Path) -> None:
    make_tiny_tokenizer(tmp_path)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(SynthesisFailed, match="lacks merges.txt"):
        CosyTokenizer.load(tmp_path, version=2)


def test_broken_file_is_an_error_of_ours(tmp_path: Path) -> None:
    make_tiny_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b c\n")
    with pytest.raises(SynthesisFailed, match="cannot be read"):
        CosyTokenizer.load(tmp_path, version=2)


def test_vocabulary_that_holds_an_added_token_is_refused() -> None:
    with pytest.raises(SynthesisFailed, match="added tokens"):
        CosyTokenizer({"a": 0, "[mn]": 1}, [], version=2)


def test_half_a_surrogate_pair_is_read_as_the_replacement_character(tmp_path: Path) -> None:
    make_tiny_tokenizer(tmp_path)
    encode = CosyTokenizer.load(tmp_path, version=3).encode
    assert encode("\ud83d alone, \U0001f600 whole") == encode("\ufffd alone, \U0001f600 whole")
