"""Encrypted recordings: what was recorded comes back bit by bit, and nothing comes back of what was changed."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from gateway.config import RecordingConfig
from gateway.errors import RecordingError
from gateway.uplink.recorder import Recorder
from gateway.uplink.sealing import Sealed, SealedFile
from talkspurt.cli import main

KEY = bytes(range(32))
RATE = 8000
CHUNK = 65_536


def sealed(path: Path, pcm: bytes, *, step: int = 1000) -> Path:
    file = SealedFile(path.open("wb"), key=KEY, rate=RATE)
    for at in range(0, len(pcm), step):
        file.writeframes(pcm[at : at + step])
    file.close()
    return path


def opened(path: Path, key: bytes = KEY, *, begin: int = 0) -> bytes:
    with path.open("rb") as file:
        return b"".join(Sealed(file, key=key).frames(begin))


@pytest.mark.parametrize("size", [0, 4, CHUNK - 4, CHUNK, CHUNK + 4, 2 * CHUNK, 3 * CHUNK + 1000])
def test_what_was_written_comes_back(tmp_path: Path, size: int) -> None:
    pcm = np.random.default_rng(size).bytes(size)
    path = sealed(tmp_path / "a.enc", pcm)
    assert opened(path) == pcm
    for begin in (4, CHUNK - 4, CHUNK, size - 4):
        assert not 0 <= begin < size or opened(path, begin=begin) == pcm[begin:]
    assert path.stat().st_size == 32 + size + 16 * max(1, -(-size // CHUNK))  # header, samples, a tag for each chunk


def test_two_files_of_the_same_sound_have_nothing_in_common(tmp_path: Path) -> None:
    one, two = (sealed(tmp_path / name, bytes(200)).read_bytes() for name in ("a.enc", "b.enc"))
    assert bytes(200) not in one
    assert one[:16] == two[:16] and one[16:32] != two[16:32] and one[32:64] != two[32:64]


@pytest.mark.parametrize("size", [0, 1000, 2 * CHUNK, 2 * CHUNK + 1000])
def test_a_file_that_was_cut_off_or_changed_is_refused_wherever_it_was(tmp_path: Path, size: int) -> None:
    path = sealed(tmp_path / "a.enc", bytes(size))
    whole = path.read_bytes()
    chunk = CHUNK + 16
    broken = [whole[:cut] for cut in (32, 40, 32 + chunk, 32 + 2 * chunk, len(whole) - 1) if cut < len(whole)]
    broken += [whole + bytes(20), whole + bytes(chunk)]
    for at in (13, 16, 32, len(whole) - 1):  # sample rate, salt, first chunk, last tag
        broken.append(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    if size == 2 * CHUNK + 1000:
        broken.append(
            whole[:32] + whole[32 + chunk : 32 + 2 * chunk] + whole[32 : 32 + chunk] + whole[32 + 2 * chunk :]
        )
        broken.append(whole[:32] + whole[32 + chunk :])
    for data in broken:
        path.write_bytes(data)
        with pytest.raises(RecordingError, match=r"^changed or cut off: chunk \d of \d is not what was recorded$"):
            opened(path)


def test_another_key_and_another_kind_of_file_are_told_apart(tmp_path: Path) -> None:
    path = sealed(tmp_path / "a.enc", bytes(100))
    with pytest.raises(RecordingError, match=r"^encrypted with key [0-9a-f]{8}, but recording.encrypt is key [0-9a-f]"):
        opened(path, bytes(32))
    for other in (b"", b"RIFF", b"RIFF" + bytes(100)):
        path.write_bytes(other)
        with pytest.raises(RecordingError, match="not an encrypted recording: expected a header of 32 bytes"):
            opened(path)


def test_an_encrypted_call_never_lies_on_the_disk_in_the_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the recorder to the command that opens the file."""
    frame = (np.sin(np.arange(160) / 3) / 2).astype(np.float32)
    plain = Recorder(tmp_path / "plain.wav", rate=RATE, max_s=60, started=0.0)
    recorder = Recorder(tmp_path / "VX1.wav", rate=RATE, max_s=60, started=0.0, key=KEY)
    for one in (plain, recorder):
        for number in range(50 * 25):  # 25 s, more than the recorder keeps in memory
            one.caller(frame, at=0.02 * (number + 1))
    secret = (tmp_path / "plain.part").read_bytes()[1000:1100]
    assert secret not in (tmp_path / "VX1.part").read_bytes()
    for one in (plain, recorder):
        one.close()
    path = tmp_path / "VX1.wav.enc"
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(other.name for other in tmp_path.iterdir()) == ["VX1.wav.enc", "plain.wav"]

    monkeypatch.setenv("TALKSPURT__RECORDING__ENCRYPT", KEY.hex())
    assert main(["recording", "decrypt", str(path)]) == 0
    made = tmp_path / "VX1.wav"
    assert capsys.readouterr().out == f"{made}\n"
    assert made.stat().st_mode & 0o777 == 0o600
    with wave.open(str(made)) as ours, wave.open(str(tmp_path / "plain.wav")) as expected:
        assert ours.getparams() == expected.getparams()
        assert ours.readframes(10**6) == expected.readframes(10**6)

    assert main(["recording", "decrypt", str(path)]) == 2  # never over another file
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["recording", "decrypt", str(path), "-o", str(tmp_path / "again.wav")]) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and "VX1.wav is there already" in told[0] and "VX1.wav.enc: changed or cut off" in told[1]
    assert sorted(other.name for other in tmp_path.iterdir()) == ["VX1.wav", "VX1.wav.enc", "plain.wav"]


def test_decrypting_onto_a_full_disk_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TALKSPURT__RECORDING__ENCRYPT", KEY.hex())
    path = sealed(tmp_path / "VX1.wav.enc", bytes(3 * CHUNK))
    (tmp_path / "VX1.wav.part").symlink_to("/dev/full")
    assert main(["recording", "decrypt", str(path)]) == 1
    assert f"{tmp_path}/VX1.wav: No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


def test_decrypt_says_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recording", "decrypt", str(tmp_path / "none.wav.enc")]) == 2
    assert "recording.encrypt is not set" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["", "secret-of-mine", "0" * 63, "g" * 64, "0" * 62 + "\N{SUPERSCRIPT TWO}0"])
def test_a_key_that_is_none_is_refused_without_being_told(key: str) -> None:
    with pytest.raises(ValidationError, match=f"is {len(key)} characters, expected 64 hexadecimal digits") as caught:
        RecordingConfig.model_validate({"encrypt": key})
    assert not key or key not in caught.value.errors()[0]["msg"]  # what `load` shows
    assert RecordingConfig.model_validate({"encrypt": KEY.hex().upper()}).key == KEY
