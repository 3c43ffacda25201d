"""``talkspurt voices install``: only the files of kokoro-js 1.2.1, only languages that can be read."""

import hashlib
from pathlib import Path

import pytest

from talkspurt.cli import main
from tts_engine.embedded.kokoro_hashes import TABLES_SHA256


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An unpacked kokoro-js whose tables are short."""
    voices = tmp_path / "package/voices"
    voices.mkdir(parents=True)
    for name in TABLES_SHA256:
        (voices / f"{name}.bin").write_bytes(name.encode())
        monkeypatch.setitem(TABLES_SHA256, name, hashlib.sha256(name.encode()).hexdigest())
    return tmp_path / "package"


def test_voices_of_a_language_are_copied(package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "made/voices"
    assert main(["voices", "install", "es-MX", "--from", str(package), "--to", str(to)]) == 0
    assert sorted(file.name for file in to.iterdir()) == ["ef_dora.bin", "em_alex.bin", "em_santa.bin"]
    assert f"voices_folder: {to}" in capsys.readouterr().out


def test_a_changed_table_is_refused_and_nothing_is_copied(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (package / "voices/em_santa.bin").write_bytes(b"other")
    assert main(["voices", "install", "es", "--from", str(package), "--to", str(tmp_path / "to")]) == 1
    assert "em_santa.bin is another file" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("language", "says"), [("de", "no German voice"), ("hi", "no one here"), ("xx", "expected en")]
)
def test_a_language_that_cannot_be_is_told(
    language: str, says: str, package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["voices", "install", language, "--from", str(package)]) == 2
    assert says in capsys.readouterr().err


def test_a_folder_without_tables_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["voices", "install", "es", "--from", str(tmp_path)]) == 2
    assert "npm pack kokoro-js@1.2.1" in capsys.readouterr().err
