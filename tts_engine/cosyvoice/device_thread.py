"""The thread that owns a device: warmed up, started, ended, and how all who wait hear of a fault."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod

from tts_engine.errors import EngineError, SynthesisFailed, Unavailable

log = logging.getLogger(__name__)


class DeviceThread(ABC):
    """``start`` it, ``aclose`` it. What it shares with the event loop changes under ``_changed`` alone."""

    def __init__(self, name: str, what: str) -> None:
        """``name``: of the thread; ``what``: of its work, for errors."""
        self._what = what
        self._changed = threading.Condition()
        self._closing = False
        self._notified_by: asyncio.AbstractEventLoop | None = None
        """The event loop that notifies the thread soon."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def _warm_up(self) -> None:
        """Get ready, in another thread than the loop's."""

    @abstractmethod
    def _loop(self) -> None:
        """Work until ``_closing``."""

    @abstractmethod
    def _fail(self, error: EngineError) -> None:
        """Tell all who wait that nothing more is done."""

    async def start(self) -> None:
        """Warm up (graphs on a GPU) and begin."""
        await asyncio.to_thread(self._warm_up)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """False before ``start``, and after a fault that ended the thread."""
        return self._thread.is_alive()

    async def aclose(self) -> None:
        """End the thread; who waits gets ``Unavailable``. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def _notify_soon(self) -> None:
        """Notify the thread when what is ready on the event loop has run. So it finds all of what many ask for at one
        moment, and does not wrest the interpreter from them, one after another, meanwhile."""
        loop = asyncio.get_running_loop()
        if self._notified_by is not loop:
            self._notified_by = loop
            loop.call_soon(self._notify)

    def _notify(self) -> None:
        self._notified_by = None
        with self._changed:
            self._changed.notify()

    def _closed(self) -> EngineError:
        return Unavailable(f"{self._what} is shut down")

    def _run(self) -> None:
        try:
            self._loop()
            self._fail(self._closed())
        except Exception as exc:  # a CUDA error leaves the device unusable: the process must be started again
            log.exception("a device's thread failed", extra={"work": self._what})
            with self._changed:
                self._closing = True
            self._fail(SynthesisFailed(f"{self._what} failed: {type(exc).__name__}"))
