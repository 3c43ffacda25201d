"""Recording of a named room: one WAV file, a channel for the bots and one for each leg. The room's ticks feed it on the
loop; ``recording_thread`` resamples, hides touch tones and writes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.uplink.hidden_keys import MARGIN_S, HiddenKeys
from gateway.uplink.pieces import at_rate
from gateway.uplink.recorder import RecordingFile
from gateway.uplink.recording_thread import RecordingQueue, RecordingThread
from gateway.uplink.tapes import KEY_HIDDEN_S, reason_of
from voicecodecs.pcm import to_float32, to_int16

log = logging.getLogger(__name__)

CHANNELS = 8
"""Channels of the file. The first one has the bots. Legs that find no free one share the last."""

RATE_HZ = 16_000
"""Sample rate of the file, Hz, unless the configuration allows less."""

_BOTS = 0
_TICK_S = 0.02
_BATCH_TICKS = 25
_HELD_S = 1.0
"""Audio that waits in the thread until no key can be found in it any more, seconds."""

_SEARCHED_S = 0.1

_MOST_MISSED_TICKS = 500
"""Most silence that is written at once for ticks that a process which stood still has left out."""

Heard = list[tuple[int, NDArray[np.int16]]]
"""Sounds of 20 ms: channels and samples."""


class RoomRecorder:
    """The recording of one room. All methods are called on the loop.

    Args:
        path: the WAV file. A JSON file beside it, written at the end, tells which leg is in which channel, and when.
        room: name of the room. tenant: its tenant.
        rate: sample rate of the file, Hz.
        max_s: longest recording, seconds.
        started: time of the first tick, monotonic seconds.
        on_lost: called with the reason if the recording is given up; at its end, on the recordings' thread.
    """

    def __init__(
        self,
        path: Path,
        thread: RecordingThread,
        *,
        room: str,
        tenant: str,
        rate: int,
        max_s: float,
        started: float,
        key: bytes | None,
        on_lost: Callable[[str], None],
    ) -> None:
        self._room, self._tenant = room, tenant
        self._started = started
        self._on_lost = on_lost
        self._name = path.stem
        self._places = path.with_suffix(".json")
        self._file = RecordingFile(path, rate=rate, channels=CHANNELS, max_s=max_s, key=key)
        self._writer = _Writer(self._file, rate)
        self._queue: RecordingQueue | None = RecordingQueue(thread)
        """None: the recording was given up or is over."""
        self._channels: dict[str, int] = {}
        self._silent: set[str] = set()
        self._log: list[dict[str, object]] = []
        self._ticks = 0
        self._heard: Heard = []
        self._batch: list[Heard] = []
        self._rate = 0

    def hear(self, leg: str, pcm: NDArray[np.int16], *, bot: bool = False) -> None:
        """Take 20 ms of a leg, or of its bot."""
        if leg not in self._silent:
            self._heard.append((_BOTS if bot else self._channel(leg), pcm))

    def tick(self, now: float, rate: int) -> None:
        """All legs of these 20 ms have been heard.

        Args:
            rate: of the samples, Hz.
        """
        heard, self._heard = self._heard, []
        if rate != self._rate:
            self._flush()
            self._rate = rate
        missed = min(max(0, round((now - self._started) / _TICK_S) - self._ticks), _MOST_MISSED_TICKS)
        self._batch += [[] for _ in range(missed)]
        self._batch.append(heard)
        self._ticks += missed + 1
        if len(self._batch) >= _BATCH_TICKS:
            self._flush()

    def pressed(self, leg: str) -> None:
        """Hide a key that a leg reports."""
        channel = self._channels.get(leg)
        if channel is not None:
            self._flush()
            self._put(lambda: self._writer.hide(channel))

    def silence(self, leg: str, silent: bool) -> None:
        """Record silence for a leg and its bot, or record them again."""
        (self._silent.add if silent else self._silent.discard)(leg)

    def left(self, leg: str) -> None:
        """Free a leg's channel."""
        self._silent.discard(leg)
        if self._channels.pop(leg, None) is not None:
            entry = next(each for each in reversed(self._log) if each["leg"] == leg)
            entry["toS"] = self._at_s

    def close(self) -> None:
        """Complete the recording."""
        for leg in list(self._channels):
            self.left(leg)
        self._flush()
        told = json.dumps({"room": self._room, "tenant": self._tenant, "legs": self._log})
        if self._queue is not None:
            self._queue.end([self._writer.close, lambda: _write_private(self._places, told)], self._lost)
        self._queue = None

    def _channel(self, leg: str) -> int:
        channel = self._channels.get(leg)
        if channel is None:
            used = set(self._channels.values())
            channel = next((each for each in range(1, CHANNELS) if each not in used), CHANNELS - 1)
            self._channels[leg] = channel
            self._log.append({"leg": leg, "channel": channel + 1, "fromS": self._at_s})
        return channel

    @property
    def _at_s(self) -> float:
        return round(self._ticks * _TICK_S, 2)

    def _flush(self) -> None:
        batch, self._batch = self._batch, []
        rate = self._rate
        if batch:
            self._put(lambda: self._writer.write(batch, rate))

    def _put(self, *acts: Callable[[], None]) -> None:
        if self._queue is None:
            return
        trouble = self._queue.trouble
        if trouble is None:
            self._queue.put(acts)
            return
        self._queue.give_up(self._file)
        self._queue = None
        self._note(trouble)

    def _lost(self, trouble: OSError) -> None:
        self._file.give_up()
        self._note(trouble)

    def _note(self, trouble: OSError) -> None:
        log.error("the recording of a room was given up", extra={"room": self._name, "why": str(trouble)})
        self._on_lost(reason_of(trouble))


class _Writer:
    """The part that runs in the recordings' thread."""

    def __init__(self, file: RecordingFile, rate: int) -> None:
        self._file = file
        self._rate = rate
        self._held = np.zeros((0, CHANNELS), np.int16)
        self._source_rate = 0
        self._keys = [HiddenKeys(rate) for _ in range(CHANNELS)]
        self._muted = [0] * CHANNELS
        """Samples that are still to be silenced in each channel."""
        self._used = [False] * CHANNELS

    def write(self, batch: Sequence[Heard], rate: int) -> None:
        if rate != self._source_rate:
            self._source_rate = rate
            self._resample = [at_rate(rate, self._rate) for _ in range(CHANNELS)]
        tick = round(rate * _TICK_S)
        summed = np.zeros((len(batch) * tick, CHANNELS), np.float32)
        for number, heard in enumerate(batch):
            for channel, pcm in heard:
                summed[number * tick : number * tick + len(pcm), channel] += to_float32(pcm)
        columns = [self._resample[each](np.ascontiguousarray(summed[:, each])) for each in range(CHANNELS)]
        for column in columns:
            np.clip(column, -1.0, 1.0, out=column)
        step = max(1, round(self._rate * _SEARCHED_S))
        for at in range(0, len(columns[0]), step):
            self._add([column[at : at + step] for column in columns])

    def _add(self, columns: Sequence[NDArray[np.float32]]) -> None:
        """Append up to 0.1 s, and release what is old enough."""
        piece = np.stack([to_int16(column) for column in columns], axis=1)
        self._held = np.concatenate((self._held, piece))
        for channel, column in enumerate(columns):
            muted = min(self._muted[channel], len(column))
            if muted:
                self._held[len(self._held) - len(column) :][:muted, channel] = 0
                self._muted[channel] -= muted
            self._used[channel] = self._used[channel] or bool(column.any())
            seconds = self._keys[channel].found(column, at_once=False) if self._used[channel] else 0.0
            if seconds:
                self._mute(channel, seconds, MARGIN_S)
        self._release(len(self._held) - round(_HELD_S * self._rate))

    def hide(self, channel: int) -> None:
        self._mute(channel, *KEY_HIDDEN_S)

    def _mute(self, channel: int, before_s: float, after_s: float) -> None:
        begin = max(0, len(self._held) - round(before_s * self._rate))
        self._held[begin:, channel] = 0
        self._muted[channel] = max(self._muted[channel], round(after_s * self._rate))

    def _release(self, samples: int) -> None:
        if samples > 0:
            self._file.write(self._held[:samples])
            self._held = self._held[samples:]

    def close(self) -> None:
        self._release(len(self._held))
        self._file.close()


def _write_private(path: Path, text: str) -> None:
    """Write a file that only this account may read. It has its name when it is whole."""
    part = path.with_suffix(".part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
