import os
from pathlib import Path

import pytest

from tts_engine.cosyvoice.kernels import compile_cache


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT"):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)


def test_everything_compiled_is_kept_in_one_folder(tmp_path: Path) -> None:
    assert not compile_cache.keep(str(tmp_path))
    folders = {os.environ[n] for n in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT")}
    assert len(folders) == 3 and {Path(f).parent for f in folders} == {tmp_path}
    assert not list(tmp_path.iterdir())


def test_a_folder_that_was_compiled_into_makes_a_warm_start(tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    assert not compile_cache.keep(str(tmp_path))
    (tmp_path / "triton/kernel").touch()
    assert compile_cache.keep(str(tmp_path))


def test_what_the_environment_says_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    compile_cache.keep(str(tmp_path))
    assert os.environ["TRITON_CACHE_DIR"] == "/elsewhere"


def test_the_default_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/somebody/cache")
    assert compile_cache.folder("") == Path("/home/somebody/cache/talkspurt")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert compile_cache.folder("") == Path.home() / ".cache/talkspurt"
