"""Which GPU an engine's process sees."""

from __future__ import annotations

import os

import pytest
from aiohttp import web

from talkspurt.engines import in_directory, see_one_gpu
from tts_engine.config import EngineConfig, ModelConfig
from tts_engine.errors import Unavailable


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
