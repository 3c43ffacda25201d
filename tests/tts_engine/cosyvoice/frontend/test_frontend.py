import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tts_engine.cosyvoice.frontend.features import VoiceFeatures
from tts_engine.cosyvoice.frontend.frontend import Frontend, choose_mode
from tts_engine.cosyvoice.frontend.normalise import plain_verbaliser
from tts_engine.errors import InvalidRequest


@pytest.fixture(scope="module")
def two(model_folder: Path) -> Frontend:
    return Frontend(model_folder, version=2, verbalise=plain_verbaliser)


@pytest.fixture(scope="module")
def three(model_folder: Path) -> Frontend:
    return Frontend(model_folder, version=3, verbalise=plain_verbaliser)


def voice(transcript: str = "hello there", tokens: int = 30, flow: int = 28) -> VoiceFeatures:
    return VoiceFeatures(
        transcript=transcript,
        lm_tokens=np.arange(tokens, dtype=np.int32),
        flow_tokens=np.arange(flow, dtype=np.int32),
        flow_mel=np.zeros((2 * flow, 80), np.float32),
        speaker=np.ones(192, np.float32),
    )


SPEAKER_ONLY = voice("", 0, 0)


def read(frontend: Frontend, ids: np.ndarray) -> str:  # type: ignore[type-arg]
    return frontend.tokenizer.decode(ids.tolist())


@pytest.mark.parametrize(
    ("version", "given", "instruct", "prompt_text", "text", "speech"),
    [
        (2, voice(), "", "hello there", "thank you", 30),
        (2, voice(""), "", "", "thank you", 0),
        (2, voice(), "slowly", "slowly<|endofprompt|>", "thank you", 0),
        (2, SPEAKER_ONLY, "", "", "thank you", 0),
        (3, voice(), "", "You are a helpful assistant.<|endofprompt|>hello there", "thank you", 30),
        (3, voice(""), "", "", "You are a helpful assistant.<|endofprompt|>thank you", 0),
        (3, voice(), "slowly", "You are a helpful assistant. slowly<|endofprompt|>", "thank you", 0),
        (3, SPEAKER_ONLY, "", "", "You are a helpful assistant.<|endofprompt|>thank you", 0),
    ],
    ids=[f"v{v}-{mode}" for v in (2, 3) for mode in ("zero_shot", "cross_lingual", "instruct", "sft")],
)
def test_layout_of_each_mode(
    two: Frontend,
    three: Frontend,
    version: int,
    given: VoiceFeatures,
    instruct: str,
    prompt_text: str,
    text: str,
    speech: int,
) -> None:
    frontend = two if version == 2 else three
    lm = frontend.clause(frontend.wording("thank you"), given, instruct=instruct)
    assert read(frontend, lm.prompt_text) == prompt_text
    assert read(frontend, lm.text) == text
    assert lm.prompt_speech.tolist() == list(range(speech))
    assert (lm.min_tokens, lm.max_tokens) == (2 * lm.text.size, 20 * lm.text.size)
    other = frontend.clause(frontend.wording("Good bye!"), given, instruct=instruct)
    first, second = ([*prompt.prompt_text.tolist(), *prompt.text.tolist()] for prompt in (lm, other))
    assert lm.shared == other.shared == len(os.path.commonprefix([first, second]))


@pytest.mark.parametrize("mode", ["zero_shot", "cross_lingual", "instruct", "sft"])
def test_version_3_always_holds_one_end_of_prompt(three: Frontend, mode: str) -> None:
    for transcript in ("hi", "You are a helpful assistant.<|endofprompt|>hi"):
        for instruct in ("slowly", "slowly<|endofprompt|>"):
            lm = three.prompt(three.tokenizer.encode("thank you"), voice(transcript), mode=mode, instruct=instruct)  # type: ignore[arg-type]
            ids = [*lm.prompt_text.tolist(), *lm.text.tolist()]
            assert ids.count(three.tokenizer.end_of_prompt_id) == 1


def test_prefix_in_the_callers_text_is_not_doubled(three: Frontend) -> None:
    lm = three.clause(three.wording("Speak up.<|endofprompt|>hi"), voice(""))
    assert read(three, lm.text) == "Speak up.<|endofprompt|>hi"


def test_transcript_and_text_are_both_normalised(two: Frontend) -> None:
    lm = two.clause(two.wording("call 12"), voice("I am 3"))
    assert read(two, lm.prompt_text) == "I am three"
    assert read(two, lm.text) == "call twelve"


def test_controls_reach_the_model_as_their_ids(three: Frontend) -> None:
    ids = three.clause(three.wording("ok [laughter] <strong>12</strong> [j][ǐ]"), voice()).text.tolist()
    specials = three.tokenizer.special_ids
    assert {specials[t] for t in ("[laughter]", "<strong>", "</strong>", "[j]", "[ǐ]")} <= set(ids)


@pytest.mark.parametrize("text", ["", "  ", "...", "，。", "\n", "— !"])
def test_text_without_words_is_refused(two: Frontend, text: str) -> None:
    with pytest.raises(InvalidRequest, match="can be spoken"):
        two.clause(two.wording(text), voice())


def test_mode_follows_from_what_there_is() -> None:
    assert choose_mode(voice()) == "zero_shot"
    assert choose_mode(voice(" ")) == "cross_lingual"
    assert choose_mode(SPEAKER_ONLY) == "sft"
    assert choose_mode(voice(), instruct="softly") == "instruct"


@pytest.mark.parametrize("version", [2, 3])
def test_spk2info_round_trip(two: Frontend, three: Frontend, version: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tests.tts_engine.cosyvoice.frontend.spk2info_file import write_spk2info
    from tts_engine.cosyvoice.frontend.spk2info import read_spk2info

    tokenizer = (two if version == 2 else three).tokenizer
    voices = {"amy": voice(), "中文女": SPEAKER_ONLY}
    path = tmp_path / "spk2info.pt"
    write_spk2info(path, voices, tokenizer, version=version)

    entry = torch.load(path, weights_only=True)["amy"]
    assert ("<|endofprompt|>" in tokenizer.decode(entry["prompt_text"][0].tolist())) == (version == 3)
    assert entry["flow_prompt_speech_token"].shape == (1, 28) and entry["prompt_speech_feat_len"].tolist() == [56]
    assert entry["llm_prompt_speech_token"].dtype == torch.int32
    again = read_spk2info(path, tokenizer)
    for voice_id, expected in voices.items():
        assert again[voice_id].transcript == expected.transcript
        for name, array in expected.to_arrays().items():
            np.testing.assert_array_equal(again[voice_id].to_arrays()[name], array)


def test_imported_prompt_is_trimmed_to_whole_chunks(two: Frontend, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.tts_engine.cosyvoice.frontend.spk2info_file import write_spk2info
    from tts_engine.cosyvoice.frontend.spk2info import read_spk2info

    write_spk2info(tmp_path / "s.pt", {"a": voice(flow=40)}, two.tokenizer, version=2)
    imported = read_spk2info(tmp_path / "s.pt", two.tokenizer)["a"]
    assert imported.flow_tokens.tolist() == list(range(12, 40)) and imported.flow_mel.shape == (56, 80)
    assert imported.lm_tokens.size == 30


def test_bad_spk2info_is_refused(two: Frontend, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tts_engine.cosyvoice.frontend.spk2info import read_spk2info

    def refused(value: object, message: str, save: Callable[..., None] = torch.save) -> None:
        save(value, tmp_path / "bad.pt")
        with pytest.raises(InvalidRequest, match=message):
            read_spk2info(tmp_path / "bad.pt", two.tokenizer)

    refused([1], "expected a dict of dicts")
    refused({"a": {"flow_prompt_speech_token": torch.zeros(1, 30)}}, "prompt_text is NoneType")
    refused({"a": {"embedding": torch.zeros(1, 191)}}, r"shape \(1, 191\)")
    refused(b"no pickle", "cannot be read", lambda value, path: path.write_bytes(value))
    refused({"a": Path("x")}, "cannot be read")  # a pickled object is not run
