"""Samples an NVIDIA GPU's memory and utilisation in a thread, by NVML (``nvidia-ml-py``, extra ``[cosyvoice]``).

Memory is that of the whole GPU, other processes included. Utilisation is the share of NVML's last sample period (1/6 to
1 s) in which at least one kernel ran. It does not tell how many multiprocessors that kernel used.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Protocol

from tts_engine.supervision import SUPERVISOR

log = logging.getLogger(__name__)

_PERIOD_S = 5.0


class GpuObserver(Protocol):
    """Receives the samples, in the sampler's thread."""

    def gpu(self, name: str, *, used_bytes: int, total_bytes: int, utilisation: float) -> None:
        """Record a sample. ``name``: the GPU's product name; ``utilisation``: 0 to 1."""
        ...


class GpuSampler:
    """The sampling thread. It never raises: if NVML or the GPU is missing, it logs a warning and takes no samples."""

    def __init__(self, uuid: str, observer: GpuObserver, *, period_s: float = _PERIOD_S) -> None:
        """
        Args:
            uuid: NVML's name of the GPU, ``GPU-`` and 36 characters. An index would not do: CUDA and NVML order the
                GPUs differently.
        """
        self._uuid, self._observer, self._period_s = uuid, observer, period_s
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        SUPERVISOR.thread("talkspurt-gpu", self._run)

    def stop(self) -> None:
        """Tell the thread to end. It does so at once, or after the current sample."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            import pynvml
        except ModuleNotFoundError:
            log.warning("no GPU metrics: nvidia-ml-py is not installed")
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as exc:
            log.warning("no GPU metrics: NVML failed", extra={"error": str(exc)})
            return
        try:
            self._sample(pynvml)
        except pynvml.NVMLError as exc:
            log.warning("GPU metrics stopped: NVML failed", extra={"error": str(exc)})
        finally:
            pynvml.nvmlShutdown()

    def _sample(self, nvml: Any) -> None:
        gpu = nvml.nvmlDeviceGetHandleByUUID(self._uuid)
        name = nvml.nvmlDeviceGetName(gpu)
        while not self._stopped.is_set():
            memory, rates = nvml.nvmlDeviceGetMemoryInfo(gpu), nvml.nvmlDeviceGetUtilizationRates(gpu)
            self._observer.gpu(name, used_bytes=memory.used, total_bytes=memory.total, utilisation=rates.gpu / 100)
            self._stopped.wait(self._period_s)
