"""The wheel, installed into a new environment: the demo that it carries answers a call's questions."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "codecs", "gateway", "tts_engine", "sip_bridge")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``talkspurt`` of a wheel that was built from the image's files, beside this environment's packages."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in (*SOURCES, "talkspurt", "configs"):
        subprocess.run(["cp", "-a", str(ROOT / name), str(source)], check=True)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", str(folder), str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "new")], check=True)
    python = folder / "new/bin/python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True)
    (packages,) = (folder / "new/lib").glob("python*/site-packages")
    # Packages only: links to a checkout in that folder are not followed from here.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "new/bin/talkspurt"


@pytest.mark.slow
def test_the_demo_of_a_wheel_answers(program: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    demo = [str(program), "demo", "--port", "0"]
    with subprocess.Popen(demo, stdout=subprocess.PIPE, cwd=tmp_path, env=environment, text=True) as running:
        try:
            assert running.stdout is not None
            site = next(line for line in running.stdout if "is ready" in line).split()[-1]
            with urllib.request.urlopen(f"{site}phone") as answer:
                assert answer.status == 200
            media = site.replace("http:", "ws:") + "media/twilio/default"
            call = [str(program), "call", media, "--seconds", "20", "-o", "heard.wav"]
            subprocess.run(call, check=True, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
            assert (tmp_path / "heard.wav").stat().st_size > 16000, "a second of its greeting"
        finally:
            running.terminate()
    assert not list(Path(tmp_path).glob("var")), "it leaves nothing beside"


@pytest.mark.slow
def test_the_wheel_writes_configurations(program: Path, tmp_path: Path) -> None:
    for command in (["init", "laptop"], ["check", "talkspurt.yaml"]):
        subprocess.run([program, "config", *command], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
