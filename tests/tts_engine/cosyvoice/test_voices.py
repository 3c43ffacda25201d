import errno
import multiprocessing
import sqlite3
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.no_room import needs_seccomp, refused_by_the_kernel, room_for
from tts_engine.api import VoiceInfo
from tts_engine.cosyvoice.voices import VoiceLimits, VoiceRegistry
from tts_engine.errors import InvalidRequest, NotFound, SynthesisFailed

HEART = VoiceInfo(voice_id="heart", name="Heart", languages=("en-US",), engine="embedded")


class CountingExtractor:
    """Features are the bytes of the recording, so that each voice's are its own."""

    engine = "test"

    def __init__(self) -> None:
        self.calls = 0

    def extract(self, wav: bytes, transcript: str) -> Mapping[str, NDArray[Any]]:
        self.calls += 1
        return {"wav": np.frombuffer(wav, np.uint8), "half": np.ones((2, 3), np.float32)[:, ::2]}


def open_registry(folder: Path, **kwargs: Any) -> VoiceRegistry:
    return VoiceRegistry(folder, engine="test", builtin=(HEART,), **{"extractor": CountingExtractor(), **kwargs})


@pytest.fixture
def registry(tmp_path: Path) -> VoiceRegistry:
    return open_registry(tmp_path / "voices")


def test_registered_voice_is_extracted_once_and_survives_a_restart(tmp_path: Path) -> None:
    extractor = CountingExtractor()
    info = open_registry(tmp_path, extractor=extractor).add(
        wav=b"abc", transcript="hello", name="Amy", voice_id="amy", language="en-GB"
    )
    again = open_registry(tmp_path, extractor=extractor)
    assert (
        again.get("amy").info
        == info
        == VoiceInfo(voice_id="amy", name="Amy", languages=("en-GB",), engine="test", registered=True)
    )
    assert again.get("amy").transcript == "hello" and again.get("amy").created > 0
    assert bytes(again.features("amy")["wav"]) == b"abc" == again.wav("amy")
    np.testing.assert_array_equal(again.features("amy")["half"], np.ones((2, 2)))
    assert extractor.calls == 1


def test_what_was_registered_is_nobody_elses_to_read(tmp_path: Path) -> None:
    folder = tmp_path / "voices"
    open_registry(folder, extractor=CountingExtractor()).add(
        wav=b"abc", transcript="hello", name="Amy", voice_id="amy", language="en-GB"
    )
    modes = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {modes[".wav"], modes[".safetensors"]} == {0o600}


def test_list_shows_built_in_voices_first(registry: VoiceRegistry) -> None:
    for voice_id in ("zoe", "amy"):
        registry.add(wav=b"x", transcript="", voice_id=voice_id)
    assert [(voice.voice_id, voice.registered) for voice in registry.voices()] == [
        ("heart", False),
        ("amy", True),
        ("zoe", True),
    ]
    assert registry.get("heart").info == HEART


def test_id_is_made_up_where_none_is_given(registry: VoiceRegistry) -> None:
    first, second = (registry.add(wav=b"x", transcript="").voice_id for _ in range(2))
    assert first != second and first.startswith("voice-")


def test_removed_voice_is_gone_with_its_files_and_its_id_is_free_again(tmp_path: Path) -> None:
    registry = open_registry(tmp_path)
    registry.add(wav=b"one", transcript="", voice_id="amy")
    registry.extend("amy", "other", {"x": np.zeros(1)})
    revision = registry.get("amy").revision
    registry.remove("amy")
    with pytest.raises(NotFound, match="no voice 'amy'"):
        registry.get("amy")
    with pytest.raises(NotFound):
        registry.remove("amy")
    assert {path.name.split("-")[0] for path in tmp_path.iterdir()} == {"voices.db"}
    registry.add(wav=b"two", transcript="", voice_id="amy")
    assert bytes(registry.features("amy")["wav"]) == b"two"
    assert registry.get("amy").revision != revision


def test_features_of_another_engine_are_kept_apart(registry: VoiceRegistry) -> None:
    registry.add(wav=b"x", transcript="", voice_id="amy")
    with pytest.raises(NotFound, match="registered for test, not for cosyvoice2"):
        registry.features("amy", "cosyvoice2")
    registry.extend("amy", "cosyvoice2", {"y": np.arange(3)})
    assert registry.features("amy", "cosyvoice2")["y"].tolist() == [0, 1, 2]
    assert "wav" in registry.features("amy")
    with pytest.raises(NotFound):
        registry.extend("nobody", "cosyvoice2", {})


def test_imported_voice_has_features_but_no_recording(registry: VoiceRegistry) -> None:
    registry.put(voice_id="中文女", features={"speaker": np.ones(192, np.float32)}, languages=["zh"])
    assert registry.features("中文女")["speaker"].shape == (192,)
    with pytest.raises(NotFound, match="no recording"):
        registry.wav("中文女")


@pytest.mark.parametrize("voice_id", ["../x", "a/b", "a.b", "-a", "a b", "a\n", "x" * 129, "*", "\0"])
def test_id_that_is_no_file_name_is_refused(registry: VoiceRegistry, voice_id: str) -> None:
    with pytest.raises(InvalidRequest, match="letters, digits") as raised:
        registry.add(wav=b"x", transcript="", voice_id=voice_id)
    assert raised.value.field == "voice_id"
    with pytest.raises(NotFound):
        registry.features(voice_id)


@pytest.mark.parametrize(
    ("kwargs", "field", "message"),
    [
        ({"wav": b"x" * 11}, "wav", "11 bytes, at most 10"),
        ({"name": "n" * 6}, "name", "6 characters, at most 5"),
        ({"transcript": "t" * 8}, "transcript", "8 characters, at most 7"),
        ({"language": "not a tag"}, "language", "BCP 47"),
        ({"voice_id": "heart"}, "voice_id", "exists already"),
        ({"voice_id": "amy"}, "voice_id", "exists already"),
        ({"voice_id": "new"}, "voice_id", "registry is full: 1 voices"),
    ],
)
def test_limits_are_refused_before_any_work(tmp_path: Path, kwargs: dict[str, Any], field: str, message: str) -> None:
    extractor = CountingExtractor()
    limits = VoiceLimits(max_voices=1, max_wav_bytes=10, max_name_chars=5, max_transcript_chars=7)
    registry = open_registry(tmp_path, extractor=extractor, limits=limits)
    if field == "voice_id":
        registry.add(wav=b"x", transcript="", voice_id="amy")
    calls = extractor.calls
    with pytest.raises(InvalidRequest, match=message) as raised:
        registry.add(**{"wav": b"x", "transcript": "", **kwargs})
    assert raised.value.field == field and extractor.calls == calls


def test_engine_that_cannot_clone_says_so(tmp_path: Path) -> None:
    registry = VoiceRegistry(tmp_path, engine="embedded", builtin=(HEART,))
    with pytest.raises(InvalidRequest, match="'embedded' has built-in voices only"):
        registry.add(wav=b"x", transcript="", voice_id="amy")
    assert registry.voices() == [HEART]


def test_built_in_voice_stays(registry: VoiceRegistry) -> None:
    with pytest.raises(InvalidRequest, match="built in"):
        registry.remove("heart")


def test_failed_extraction_leaves_nothing(tmp_path: Path) -> None:
    class Refusing(CountingExtractor):
        def extract(self, wav: bytes, transcript: str) -> Mapping[str, NDArray[Any]]:
            raise InvalidRequest("too short", field="wav")

    registry = open_registry(tmp_path, extractor=Refusing())
    with pytest.raises(InvalidRequest, match="too short"):
        registry.add(wav=b"x", transcript="", voice_id="amy")
    assert registry.voices() == [HEART] and not list(tmp_path.glob("amy*"))


def _race(folder: Path, worker: int) -> int:
    """Register one id that all workers want and three of our own; 1 if the common one was ours."""
    registry = open_registry(folder)
    won = 0
    for name in ("common", *(f"own-{worker}-{n}" for n in range(3))):
        try:
            registry.add(wav=f"{worker}".encode(), transcript=f"{worker}", voice_id=name)
            won += name == "common"
        except InvalidRequest:
            assert name == "common"
    return won


def test_several_processes_share_a_registry(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        won = pool.starmap(_race, [(tmp_path, worker) for worker in range(3)])
    registry = open_registry(tmp_path)
    assert sum(won) == 1
    assert len(registry.voices()) == 1 + 1 + 9
    record = registry.get("common")
    assert record.transcript == f"{won.index(1)}"
    assert bytes(registry.features("common")["wav"]).decode() == record.transcript  # row and file of one winner


def test_a_registry_that_another_process_makes_is_waited_for(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "voices.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.2, other.rollback)
    release.start()
    assert open_registry(tmp_path).voices() == [HEART]
    release.join()
    other.close()


def test_reader_does_not_wait_for_a_writer(registry: VoiceRegistry, tmp_path: Path) -> None:
    registry.add(wav=b"x", transcript="", voice_id="amy")
    writer = sqlite3.connect(tmp_path / "voices" / "voices.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM voices")
    assert registry.get("amy").info.voice_id == "amy"
    writer.execute("ROLLBACK")
    writer.close()


def test_registry_of_another_release_is_refused(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "voices.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(SynthesisFailed, match="layout 99, this release reads 1"):
        open_registry(tmp_path)


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SynthesisFailed, match="cannot be opened"):
        open_registry(tmp_path / "file" / "voices")


@pytest.mark.parametrize("room", [0, 5_000, 20_000, 44_000])
def test_a_disk_that_is_full_at_any_step_leaves_no_file_of_the_voice(tmp_path: Path, room: int) -> None:
    """Features and recording have 40,000 bytes each, and the database grows with each voice."""
    registry = open_registry(tmp_path)
    full = 0
    with room_for(room):
        for number in range(60):
            try:
                registry.add(wav=b"x" * 40_000, transcript="t" * 900, voice_id=f"amy{number}")
            except SynthesisFailed:
                full += 1
    assert full > 0
    names = {voice.voice_id for voice in registry.voices()} - {"heart"}
    files = {path.name for path in tmp_path.iterdir() if not path.name.startswith("voices.db")}
    assert files == {f"{name}{end}" for name in names for end in (".wav", ".test.safetensors")}
    registry.add(wav=b"two", transcript="", voice_id="amy59")
    assert bytes(registry.features("amy59")["wav"]) == b"two"


@needs_seccomp
@pytest.mark.parametrize("what", ["write", "sync", "rename"])
def test_a_faulty_disk_leaves_no_file_of_the_voice(tmp_path: Path, what: str) -> None:
    registry = open_registry(tmp_path)
    with pytest.raises(SynthesisFailed):
        refused_by_the_kernel(what, errno.EIO, lambda: registry.add(wav=b"x", transcript="", voice_id="amy"))
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith("voices.db")]
    registry.add(wav=b"two", transcript="", voice_id="amy")
    assert bytes(registry.features("amy")["wav"]) == b"two"


def test_damaged_features_are_an_error_of_ours(tmp_path: Path) -> None:
    registry = open_registry(tmp_path)
    registry.add(wav=b"x", transcript="", voice_id="amy")
    (tmp_path / "amy.test.safetensors").write_bytes(b"?")
    with pytest.raises(SynthesisFailed, match="features of voice 'amy'"):
        registry.features("amy")
