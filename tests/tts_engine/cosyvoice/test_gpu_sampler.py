"""The sampler against the real library, which finds no driver here, and against its interface with a GPU."""

from __future__ import annotations

import threading
from typing import Any

import pynvml
import pytest

from tests.waiting import until
from tts_engine.cosyvoice.gpu_sampler import GpuSampler
from tts_engine.metrics import REGISTRY, PrometheusObserver

UUID = "GPU-00000000-0000-0000-0000-000000000000"


class Samples:
    def __init__(self) -> None:
        self.taken: list[tuple[str, int, int, float]] = []

    def gpu(self, name: str, *, used_bytes: int, total_bytes: int, utilisation: float) -> None:
        self.taken.append((name, used_bytes, total_bytes, utilisation))


def ended() -> bool:
    return all(thread.name != "talkspurt-gpu" for thread in threading.enumerate())


async def test_the_real_library_without_a_gpu_of_that_name_gives_no_samples() -> None:
    samples = Samples()
    sampler = GpuSampler(UUID, samples)
    sampler.start()
    await until(ended)
    assert samples.taken == []


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The library's functions, by its own names and with its own structures, as if a GPU were there."""
    memory, rates = pynvml.c_nvmlMemory_t(), pynvml.c_nvmlUtilization_t()
    memory.used, memory.total, rates.gpu = 30 * 2**30, 80 * 2**30, 42
    state: dict[str, Any] = {"memory": memory, "asked": [], "down": threading.Event(), "error": None}

    def utilization(handle: object) -> object:
        assert handle == "handle"
        if state["error"] is not None:
            raise state["error"]
        return rates

    def handle(uuid: str) -> str:
        state["asked"].append(uuid)
        return "handle"

    for name, function in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": state["down"].set,
        "nvmlDeviceGetHandleByUUID": handle,
        "nvmlDeviceGetName": lambda _: "NVIDIA H200",
        "nvmlDeviceGetMemoryInfo": lambda _: memory,
        "nvmlDeviceGetUtilizationRates": utilization,
    }.items():
        monkeypatch.setattr(pynvml, name, function)  # which fails for a name that the library does not have
    return state


async def test_samples_are_taken_again_and_again_until_it_is_stopped(with_gpu: dict[str, Any]) -> None:
    samples = Samples()
    sampler = GpuSampler(UUID, samples, period_s=0.001)
    sampler.start()
    await until(lambda: len(samples.taken) > 2)
    sampler.stop()
    await until(ended)
    assert samples.taken[0] == ("NVIDIA H200", 30 * 2**30, 80 * 2**30, 0.42)
    assert with_gpu["asked"] == [UUID] and with_gpu["down"].is_set()


async def test_a_gpu_that_is_lost_ends_the_samples(with_gpu: dict[str, Any]) -> None:
    with_gpu["error"] = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    samples = Samples()
    sampler = GpuSampler(UUID, samples)
    sampler.start()
    await until(ended)
    assert samples.taken == [] and with_gpu["down"].is_set()


def test_samples_become_metrics() -> None:
    PrometheusObserver().gpu("NVIDIA H200", used_bytes=3, total_bytes=8, utilisation=0.5)
    read = [
        REGISTRY.get_sample_value(f"talkspurt_gpu_{name}", {"gpu": "NVIDIA H200"})
        for name in ("memory_used_bytes", "memory_total_bytes", "utilisation_ratio")
    ]
    assert read == [3, 8, 0.5]
