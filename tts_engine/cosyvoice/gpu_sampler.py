"""Samples an NVIDIA GPU's memory and utilisation in a thread, by NVML (``nvidia-ml-py``, extra ``[cosyvoice]``).

The figures are NVML's. Memory is that of the whole GPU, other processes included. Utilisation is the share of the last
sample period, of 1/6 to 1 s, in which at least one kernel ran: it says nothing about how much of the GPU that kernel
filled.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Protocol

log = logging.getLogger(__name__)

_PERIOD_S = 5.0


class GpuObserver(Protocol):
    """Takes the samples. It is called in the sampler's thread."""

    def gpu(self, name: str, *, used_bytes: int, total_bytes: int, utilisation: float) -> None:
        """Take a sample of the GPU of that product name. ``utilisation`` is 0 to 1."""
        ...


class GpuSampler:
    """The thread. ``start`` begins it, ``stop`` ends it. It never raises: without NVML or its GPU there are no
    samples."""

    def __init__(self, uuid: str, observer: GpuObserver, *, period_s: float = _PERIOD_S) -> None:
        """
        Args:
            uuid: NVML's name of the GPU, ``GPU-`` and 36 characters. No number, because CUDA counts the GPUs in another
                order than NVML.
        """
        self._uuid, self._observer, self._period_s = uuid, observer, period_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="talkspurt-gpu", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, which may be in the middle of a sample."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            import pynvml
        except ModuleNotFoundError:
            log.warning("no metrics of the GPU: nvidia-ml-py is not installed")
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as exc:
            log.warning("no metrics of the GPU", extra={"error": str(exc)})
            return
        try:
            self._sample(pynvml)
        except pynvml.NVMLError as exc:
            log.warning("no more metrics of the GPU", extra={"error": str(exc)})
        finally:
            pynvml.nvmlShutdown()

    def _sample(self, nvml: Any) -> None:
        gpu = nvml.nvmlDeviceGetHandleByUUID(self._uuid)
        name = nvml.nvmlDeviceGetName(gpu)
        while not self._stopped.is_set():
            memory, rates = nvml.nvmlDeviceGetMemoryInfo(gpu), nvml.nvmlDeviceGetUtilizationRates(gpu)
            self._observer.gpu(name, used_bytes=memory.used, total_bytes=memory.total, utilisation=rates.gpu / 100)
            self._stopped.wait(self._period_s)
