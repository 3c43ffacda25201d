"""Base class of the threads that own a device: warm-up, start, end, and failing all waiting requests after a fault."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod

from tts_engine.errors import EngineError, SynthesisFailed, Unavailable
from tts_engine.supervision import SUPERVISOR, SupervisedThread

log = logging.getLogger(__name__)


class DeviceThread(ABC):
    """A thread that owns a device. Call ``start`` before use and ``aclose`` at the end. State shared with the event
    loop may be changed only while holding ``_changed``."""

    def __init__(self, name: str, what: str) -> None:
        """``name``: thread name. ``what``: name of the thread's work in error messages."""
        self._what = what
        self._changed = threading.Condition()
        self._closing = False
        self._notified_by: asyncio.AbstractEventLoop | None = None
        """The event loop on which a ``_notify`` is scheduled. None: no notification is pending."""
        self._name = name
        self._thread: SupervisedThread | None = None

    @abstractmethod
    def _warm_up(self) -> None:
        """Prepare the device. Runs in a worker thread of ``asyncio.to_thread`` before the device thread starts."""

    @abstractmethod
    def _loop(self) -> None:
        """Serve requests until ``_closing``. Runs in the device thread."""

    @abstractmethod
    def _fail(self, error: EngineError) -> None:
        """Fail every waiting request with ``error``."""

    async def start(self) -> None:
        """Warm up (on a GPU, capture CUDA graphs) and start the thread."""
        await asyncio.to_thread(self._warm_up)
        self._thread = SUPERVISOR.thread(self._name, self._run)

    @property
    def alive(self) -> bool:
        """True while the thread runs: False before ``start`` and after a fault."""
        return self._thread is not None and self._thread.is_alive

    async def aclose(self) -> None:
        """End the thread. Waiting requests fail with ``Unavailable``. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None and self._thread.is_alive:
            await asyncio.to_thread(self._thread.join)

    def _notify_soon(self) -> None:
        """Notify the thread after the callbacks that are ready on the event loop have run. The thread then sees all
        requests of a burst at once, and does not compete for the interpreter lock while they are being made."""
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
        except Exception as exc:  # after a CUDA error the device is unusable until the process restarts
            log.exception("device thread failed", extra={"work": self._what})
            with self._changed:
                self._closing = True
            self._fail(SynthesisFailed(f"{self._what} failed: {type(exc).__name__}"))
