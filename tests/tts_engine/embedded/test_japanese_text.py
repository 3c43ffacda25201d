"""Japanese by Kokoro: symbols, written forms of numbers, words and their places, and what is said without the extra.

The words of Open JTalk are those of ``pyopenjtalk-plus`` 0.4.1.post10. One test compares them with the package's own,
where it is installed (``requirements/japanese.txt``). The symbols are those of ``misaki`` 0.9.4, ``cutlet.py``.
"""

import asyncio
import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tts_engine.config import EmbeddedConfig, MandarinConfig
from tts_engine.embedded.hibari_text import PhonemeReader
from tts_engine.embedded.japanese_text import JapaneseReader, symbols
from tts_engine.embedded.kokoro import read_tables
from tts_engine.embedded.synthesizer import EmbeddedSynthesizer
from tts_engine.errors import InvalidRequest, Unavailable
from tts_engine.synthesizer import ClauseRequest, PcmChunk, Playhead
from voicecodecs.pcm import dbov

IDS = PhonemeReader().ids
FOUND = {
    "何か": "何/ナニ か/カ",
    "はい。": "はい/ハイ 。/、",
    "はい！": "はい/ハイ ！/！",
    "3,500円です。": "三/サン 千/ゼン 五/ゴ 百/ヒャク 円/エン です/デス’ 。/、",
    "電話は03-1234です。": "電話/デンワ は/ワ ０/ゼロ ３/サン −/、 １/イチ ２/ニー ３/サン ４/ヨン です/デス’ 。/、",
    "番号は0 3 1 2です。": "番号/バンゴー は/ワ ０/ゼロ ３/サン １/イチ 二/ニ です/デス’ 。/、",
    "午後3時30分に言った。": "午後/ゴゴ 三/サン 時/ジ 三/サン 十/ジュッ 分/プン に/ニ 言っ/イッ た/タ 。/、",
    "1.5キロ": "一/イッ ．/テン 五/ゴ キロ/キロ",
    "12月5日": "１２月/ジューニガツ 五日/イツ’カ",
}
"""Text -> words and their readings by Open JTalk."""


def recorded(text: str) -> list[Mapping[str, str]]:
    return [dict(zip(("string", "pron"), word.split("/"), strict=True)) for word in FOUND[text].split()]


def read(text: str, analysed: str = "") -> tuple[str, list[str]]:
    """Return the symbols of a text, and the characters of its words."""
    reader = JapaneseReader(IDS, lambda given: recorded(analysed or given) if given != "何か" else [])
    names = {number: symbol for symbol, number in IDS.items()}
    (piece,) = reader.read(text)
    said = "".join(names[number] for number in piece.ids[1:-1]).strip()
    for word in piece.words:
        assert " " not in {names[piece.ids[word.first_id]], names[piece.ids[word.end_id - 1]]}
    return said, [text[word.start_char : word.end_char] for word in piece.words]


@pytest.mark.parametrize(
    ("kana", "said"),
    [
        ("アカガキツヅフ", "akaɡakʲiʦɨzɨɸɯ"),
        ("シャシュショ", "ɕaɕɨɕo"),
        ("キャギュニョヒャ", "kʲaɡʲɨɲoça"),
        ("クァグォウィウェイェ", "kᵝaɡᵝoβiβeje"),
        ("ファフィティトゥデュツィ", "ɸaɸʲitʲitɯdʲɨʦʲi"),
        ("シェジェチェヴァヴィ", "ɕeʥeʨevavʲi"),
        ("ガッコー", "ɡaʔkoː"),
        ("サンポ", "sampo"),
        ("マンガ", "maŋɡa"),
        ("コンニチ", "koɲɲiʨi"),
        ("オンド", "ondo"),
        ("デンワ", "deɴβa"),
        ("ゼンゼン", "ʣeɴʣeɴ"),
        ("ヶ", "ke"),
        ("x ’", ""),
    ],
)
def test_kana_become_the_symbols_of_kokoro(kana: str, said: str) -> None:
    assert symbols(kana) == said
    assert set(said) <= IDS.keys()


@pytest.mark.parametrize(
    ("text", "said", "words"),
    [
        ("3,500円です。", "saɴ ʣeɴ ɡo çakɯ eɴ desɨ.", ["3,500", "円", "です"]),
        ("12月5日", "ʥɨːɲiɡaʦɨ iʦɨka", ["12月", "5日"]),
        ("電話は03-1234です。", "deɴβa βa ʣeɾo saɴ, iʨi ɲiː saɴ joɴ desɨ.", ["電話", "は", "03", "1234", "です"]),
        ("番号は0 3 1 2です。", "baŋɡoː βa ʣeɾo saɴ iʨi ɲi desɨ.", ["番号", "は", "0", "3", "1", "2", "です"]),
        ("1.5キロ", "iʔteɴ ɡo kʲiɾo", ["1.5", "キロ"]),
        ("はい！", "hai!", ["はい"]),
    ],
)
def test_words_have_their_sounds_and_their_characters(text: str, said: str, words: list[str]) -> None:
    assert read(text) == (said, words)


def test_open_jtalk_itself_finds_the_recorded_words() -> None:
    pytest.importorskip("pyopenjtalk")
    reader = JapaneseReader(IDS)
    for text in FOUND:
        recording = JapaneseReader(IDS, lambda given: recorded(given))
        assert reader.read(text) == recording.read(text), text


def test_a_rewritten_text_keeps_its_characters() -> None:
    said, words = read("**午後3:30**に言った。", "午後3時30分に言った。")
    assert said == "ɡoɡo saɴ ʥi saɴ ʥɨʔpɯɴ ɲi iʔta."
    assert words == ["午後", "3:30", "に", "言っ", "た"]
    assert read("￥3,500です。", "3,500円です。")[1] == ["￥3,500", "です"]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("$12.50と€3万", "12.50ドルと3万ユーロ"),
        ("¥3'500", "3,500円"),
        ("2026/02/05か2026-12-05", "2026年2月5日か2026年12月5日"),
        ("--02-05", "2月5日"),
        ("9:00〜17:05", "9時から17時5分"),
        ("10:05:30", "10時5分30秒"),
        ("192:30:1", "192:30:1"),
        ("1⁄2", "2分の1"),
        ("気温は-5度", "気温はマイナス5度"),
        ("AB-12、03-1234", "AB-12、03-1234"),
        ("ｶﾌﾞｼｷ", "カブシキ"),
    ],
)
def test_digits_are_written_as_open_jtalk_reads_them(text: str, written: str) -> None:
    given: list[str] = []

    def frontend(text: str) -> list[Mapping[str, str]]:
        given.append(text)
        return []

    assert JapaneseReader(IDS, frontend).read(text) == []
    assert given == ["何か", written]


def test_another_script_is_refused_and_marks_alone_are_silent() -> None:
    reader = JapaneseReader(IDS, lambda text: [])
    with pytest.raises(InvalidRequest, match="Hangul letters, the voice speaks Japanese"):
        reader.read("はい、안녕")
    assert reader.read("…。") == []


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyopenjtalk", None)
    with pytest.raises(Unavailable, match=r"pip install 'talkspurt\[kokoro,japanese\]'"):
        JapaneseReader(IDS)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyopenjtalk" else found(name))
    with pytest.raises(Unavailable, match=r"pip install 'talkspurt\[japanese\]'"):
        read_tables(str(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Japanese voice, by a table of the package."""
    (tmp_path / "jf_test.bin").write_bytes(next(iter(read_tables("").values())).tobytes())
    return tmp_path


def test_a_japanese_clause_is_spoken_by_a_japanese_voice(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    module = ModuleType("pyopenjtalk")
    module.__spec__ = ModuleSpec("pyopenjtalk", None)
    module.run_frontend = lambda text, *, use_sudachi_kanji_yomi: recorded(text)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyopenjtalk", module)

    async def spoken() -> list[PcmChunk]:
        config = EmbeddedConfig(mandarin=MandarinConfig(voices_folder=str(folder)))
        voice = EmbeddedSynthesizer(config, cache_folder=tmp_path / "cache")
        await voice.start()
        assert {each.voice_id: list(each.languages) for each in voice.voices()}["jf_test"] == ["ja-JP"]
        clause = ClauseRequest(text="12月5日", voice="", language="ja-JP", speed=1.0, instruct="", first=True)
        chunks = [chunk async for chunk in voice.synthesize(clause, Playhead())]
        await voice.aclose()
        return chunks

    (chunk,) = asyncio.run(spoken())
    assert dbov(np.asarray(chunk.pcm)) > -40
    assert [(word.start_char, word.end_char) for word in chunk.words] == [(0, 3), (3, 5)]
