"""The GPU that an engine's process sees, and the process that has its model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from aiohttp import web

from talkspurt import voice_model
from talkspurt.engines import in_directory, make_synthesizer, see_one_gpu
from tts_engine.config import EngineConfig, ModelConfig
from tts_engine.cosyvoice.checkpoint import make
from tts_engine.errors import Unavailable
from tts_engine.voice_model.parent import RemoteSynthesizer


@pytest.mark.parametrize(
    ("status", "answer", "targets"),
    [
        (200, {"engines": ["10.0.0.7:50051", "[fd00::7]:50051"]}, ["10.0.0.7:50051", "[fd00::7]:50051"]),
        (200, {"engines": []}, []),
        (503, {"error": "starting"}, None),
        (200, {"engines": "10.0.0.7:50051"}, None),
        (200, {"engines": ["unix:/run/engine.sock"]}, None),
        (200, ["10.0.0.7:50051"], None),
    ],
)
async def test_a_directory_names_the_engines_or_counts_as_down(
    status: int, answer: object, targets: list[str] | None
) -> None:
    async def handle(_request: web.Request) -> web.Response:
        return web.json_response(answer, status=status)

    app = web.Application()
    app.router.add_get("/engines", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/engines"
    try:
        if targets is None:
            with pytest.raises(OSError, match="director"):
                await in_directory(url)
        else:
            assert await in_directory(url) == targets
    finally:
        await runner.cleanup()


VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("device", "visible", "seen"),
    [
        ("cuda", None, "0"),
        ("cuda:1", None, "1"),
        ("cuda:1", "4, 6", "6"),
        ("cuda", "GPU-8a,GPU-9b", "GPU-8a"),
        ("cpu", None, None),
        ("cpu", "3", "3"),
    ],
)
def test_the_process_sees_the_engines_gpu_alone(
    device: str, visible: str | None, seen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, visible or "")
    if visible is None:
        monkeypatch.delenv(VISIBLE)
    config = EngineConfig(
        kind="cosyvoice3", device=device, more_models={"two": ModelConfig(kind="cosyvoice2", device=device)}
    )
    one = see_one_gpu(config)
    assert os.environ.get(VISIBLE) == seen
    expected = "cpu" if device == "cpu" else "cuda"
    assert (one.device, one.more_models["two"].device) == (expected, expected)


def test_a_voice_on_the_cpu_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "0,1")
    see_one_gpu(EngineConfig(kind="embedded", device="cuda:1"))
    assert os.environ[VISIBLE] == "0,1"


def test_models_on_two_gpus_are_refused() -> None:
    config = EngineConfig(kind="cosyvoice3", more_models={"two": ModelConfig(kind="cosyvoice2", device="cuda:1")})
    with pytest.raises(Unavailable, match=r"engine\.device is cuda, engine\.more_models\.two\.device is cuda:1"):
        see_one_gpu(config)


def test_a_hidden_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "0")
    with pytest.raises(Unavailable, match="device cuda:1: CUDA_VISIBLE_DEVICES is '0'"):
        see_one_gpu(EngineConfig(kind="cosyvoice3", device="cuda:1"))


@pytest.mark.parametrize(
    ("device", "own_process", "apart"),
    [("cuda", None, True), ("cpu", None, False), ("cpu", True, True)],
)
def test_a_model_on_a_gpu_gets_a_process_of_its_own(
    device: str, own_process: bool | None, apart: bool, tmp_path: Path
) -> None:
    make(tmp_path / "tiny", 3)
    config = EngineConfig.model_validate(
        {
            "model_folder": str(tmp_path / "tiny"),
            "device": device,
            "voices_folder": str(tmp_path / "voices"),
            "cosyvoice": {"own_process": own_process, "max_clauses": 2},
        }
    )
    assert isinstance(make_synthesizer(config, config), RemoteSynthesizer) == apart


def test_an_engine_that_listens_to_others_tells_its_model_no_secret() -> None:
    config = EngineConfig.model_validate(
        {
            "kind": "cosyvoice3",
            "model_folder": "/models/three",
            "listen": "0.0.0.0:50051",
            "token": "secret-of-the-engine",
            "tls": {"certificate": "c.pem", "key": "k.pem"},
            "voices_folder": "/voices",
            "cosyvoice": {"max_clauses": 7},
        }
    )
    told = voice_model.settings(config, config, "engine")
    assert "secret" not in told
    model, whole, section, share = voice_model.told(told)
    assert share == 1
    assert (model.model_folder, model.cosyvoice.max_clauses, section) == ("/models/three", 7, "engine")
    assert voice_model.voices_folder(whole) == Path("/voices")
