"""The sounds that a mixer adds: a leg's caller, the bot's voice, and clips or tones. Pure.

A mixer calls ``advance`` of every source once for each 20 ms, and ``pcm`` only where it needs samples. So a payload
that may pass as it is costs no decoding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gateway.mixing.receive_buffer import LEAST_WAIT_S, LOST, ReceiveBuffer
from voicecodecs import opus
from voicecodecs.conceal import ConcealingDecoder
from voicecodecs.mixing import FrameResampler, amplified
from voicecodecs.registry import AudioFormat, decoder

Pcm = NDArray[np.int16]

TICK_MS = 20
TICK_S = TICK_MS / 1000
"""Length of the frames that a mixer adds, seconds."""

_ON_TIME_S = 0.12
"""Largest lateness at which a relayed payload keeps its place on the timetable."""

_PAUSE_TICKS = 10
"""Pause of the bot after which it counts as silent, so that a pause between two words changes nothing else."""

MOST_VOICE_S = 2.0
"""Most speech of the bot that waits for its turn in the mix; more is refused, as by a full socket."""


class Source(Protocol):
    """One sound of a mixer."""

    rate: int
    """Rate of the sound, Hz. For Opus the highest one."""
    sounds: bool
    """Result of the last ``advance``."""
    payload: bytes | None
    """The payload of this tick, if it is exactly one frame of 20 ms in ``format``. None: there are only samples."""
    format: AudioFormat | None

    def use_rate(self, rate: int) -> None:
        """Make samples at this rate from now on, Hz."""
        ...

    def advance(self, now: float) -> bool:
        """Begin the next 20 ms. False: there is no sound in them."""
        ...

    def pcm(self) -> Pcm:
        """Return the samples of these 20 ms: int16, shape ``(rate / 50,)``. Only if ``advance`` returned True."""
        ...


class LegSource:
    """The sound of a leg's caller. Payloads may have any length and come at any time.

    Args:
        fmt: format of the payloads.
        in_real_time: True if payloads come as they were sent, with the network's jitter only: RTP.
    """

    def __init__(self, fmt: AudioFormat, *, in_real_time: bool) -> None:
        self.format: AudioFormat | None = fmt
        self.in_real_time = in_real_time
        self.rate = max(opus.SAMPLE_RATES) if fmt.encoding == "OPUS" else fmt.sample_rate
        self.sounds = False
        self.payload: bytes | None = None
        self.buffer = ReceiveBuffer()
        self._heard = False
        self._relay: Callable[[bytes, float], object] | None = None
        self._relayed_until = 0.0
        self._pushed_at = 0.0
        self._format = fmt
        self._last_s = fmt.ptime_ms / 1000
        """Length of the last payload."""
        self._per_byte_s = 0.0 if fmt.frame_bytes is None else fmt.ptime_ms / 1000 / fmt.frame_bytes
        self._waiting: Pcm = np.zeros(0, np.int16)
        """Decoded samples before resampling that no tick has taken."""
        self._made: Pcm | None = None
        self.use_rate(self.rate)

    def use_rate(self, rate: int) -> None:
        """Make samples at this rate from now on, Hz."""
        fmt = self._format
        if fmt.encoding == "OPUS":
            fmt = replace(fmt, sample_rate=rate)  # its decoder makes any of our rates
        self._decoder = ConcealingDecoder(fmt)
        self._samples = fmt.sample_rate * TICK_MS // 1000
        self._resampler = FrameResampler(fmt.sample_rate, rate)
        self._waiting = self._waiting[:0]

    def deliver(self, *, heard: bool, relay: Callable[[bytes, float], object] | None) -> None:
        """Set whether anyone listens. ``relay`` takes payloads and their times as they arrive, in place of the
        buffer."""
        if relay is not None and self._relay is None:
            for payload in filter(None, self.buffer.clear()):
                relay(payload, self._pushed_at)
            self._relayed_until = self._pushed_at + self._last_s
            self._waiting = self._waiting[:0]
        self._heard, self._relay = heard, relay
        if not heard:
            self.buffer.clear()

    def push(self, payload: bytes, *, now: float) -> None:
        """Take a payload as it arrives; an empty one was lost."""
        if not self._heard:
            return
        self._pushed_at = now
        seconds = self._last_s
        if payload:
            seconds = self._last_s = len(payload) * self._per_byte_s or opus.packet_s(payload)
        if self._relay is None:
            self.buffer.push(payload, seconds, now=now)
            return
        # Small differences of arrival are left to the next receiver: they must not look like silence.
        at = self._relayed_until if abs(now - self._relayed_until) < _ON_TIME_S else now
        self._relayed_until = at + seconds
        self._relay(payload, at)

    def advance(self, now: float) -> bool:
        """Begin the next 20 ms."""
        self.payload = self._made = None
        self.sounds = False
        while len(self._waiting) < self._samples:
            blended = self.buffer.has_surplus
            payload = self.buffer.take(self._last_s, now=now)
            if payload is None:
                break
            if payload and not len(self._waiting) and not blended and abs(self._last_s - TICK_S) < 1e-6:
                self.payload, self.sounds = payload, True
                return True
            self._decode(payload, self.buffer.take(self._last_s, now=now) if blended else None)
        self.sounds = len(self._waiting) > 0
        return self.sounds

    def _decode(self, payload: bytes, next_payload: bytes | None = None) -> None:
        """Append a payload's samples; a second one is blended over the first, so that both take the time of one."""
        pcm = self._decoded(payload)
        if next_payload:
            following = self._decoded(next_payload)
            if len(following) == len(pcm):
                rise = np.linspace(0.0, 1.0, len(pcm), dtype=np.float32)
                pcm = (pcm * (1 - rise) + following * rise).astype(np.int16)
            else:
                pcm = np.concatenate((pcm, following))
        self._waiting = np.concatenate((self._waiting, pcm)) if len(self._waiting) else pcm

    def _decoded(self, payload: bytes) -> Pcm:
        try:
            return self._decoder.decode(payload, b"" if payload else self.buffer.following)
        except ValueError:  # not audio of this codec
            return self._decoder.decode(LOST)

    def pcm(self) -> Pcm:
        """Return the samples of these 20 ms."""
        if self._made is None:
            if self.payload is not None:
                self._decode(self.payload)
            frame, self._waiting = self._waiting[: self._samples], self._waiting[self._samples :]
            if len(frame) < self._samples:
                frame = np.concatenate((frame, np.zeros(self._samples - len(frame), np.int16)))
            self._made = self._resampler.convert(frame)
        return self._made


class PlayoutSource:
    """The bot's voice on a leg: encoded frames from its playout, and marks between them.

    Args:
        fmt: format of the frames.
        send_mark: receives each mark when the frames before it have been mixed.
        on_wake: called when the bot begins to speak.
    """

    def __init__(self, fmt: AudioFormat, send_mark: Callable[[str], None], on_wake: Callable[[], None]) -> None:
        self.format: AudioFormat | None = fmt
        self.rate = fmt.sample_rate
        self.sounds = False
        self.payload: bytes | None = None
        self._format = fmt
        self._send_mark = send_mark
        self._on_wake = on_wake
        self._queue: deque[bytes | str] = deque()
        self._begun_at = 0.0
        self._silent_ticks = _PAUSE_TICKS
        self._most = max(2, round(MOST_VOICE_S * 1000 / fmt.ptime_ms))
        self._decoder = decoder(fmt)
        self._samples = fmt.sample_rate * TICK_MS // 1000
        self._waiting: Pcm = np.zeros(0, np.int16)
        self._made: Pcm | None = None
        self.use_rate(self.rate)

    def use_rate(self, rate: int) -> None:
        """Make samples at this rate from now on, Hz."""
        self._resampler = FrameResampler(self._format.sample_rate, rate)

    @property
    def waits(self) -> bool:
        """True if frames or marks wait to be mixed."""
        return bool(self._queue) or len(self._waiting) > 0

    @property
    def at_rest(self) -> bool:
        """True if the bot has been silent for a while. ``on_wake`` announces its next speech."""
        return self._silent_ticks >= _PAUSE_TICKS and not self.waits

    def push(self, frame: bytes, *, now: float) -> bool:
        """Take the next frame. False: too much waits already."""
        if len(self._queue) >= self._most:
            return False
        if not self.waits and self._silent_ticks:
            self._begun_at = now
        was_at_rest = self.at_rest
        self._queue.append(frame)
        if was_at_rest:
            self._silent_ticks = 1
            self._on_wake()
        return True

    def mark(self, name: str) -> None:
        """Report this mark after the frames before it."""
        if self.waits:
            self._queue.append(name)
        else:
            self._send_mark(name)

    def clear(self) -> None:
        """Drop everything that waits, also the marks."""
        self.take_all()

    def take_all(self) -> list[bytes | str]:
        """Return the frames and marks that wait, and forget them."""
        waiting = list(self._queue)
        self._queue.clear()
        self._waiting = self._waiting[:0]
        return waiting

    def advance(self, now: float) -> bool:
        """Begin the next 20 ms."""
        self.payload = self._made = None
        if self._silent_ticks and now - self._begun_at < LEAST_WAIT_S and len(self._queue) < 2:
            # Later frames come as often as ticks. One that came at the very time of a tick might miss it.
            self.sounds = False
            return False
        while self._queue and len(self._waiting) < self._samples:
            entry = self._queue.popleft()
            if isinstance(entry, str):
                self._send_mark(entry)
            elif not len(self._waiting) and self._format.ptime_ms == TICK_MS:
                self.payload = entry
                break
            else:
                self._waiting = np.concatenate((self._waiting, self._decoder.decode(entry)))
        while self._queue and isinstance(self._queue[0], str) and self.payload is None and not len(self._waiting):
            self._send_mark(str(self._queue.popleft()))
        self.sounds = self.payload is not None or len(self._waiting) > 0
        self._silent_ticks = 0 if self.sounds else self._silent_ticks + 1
        return self.sounds

    def pcm(self) -> Pcm:
        """Return the samples of these 20 ms."""
        if self._made is None:
            if self.payload is not None:
                frame = self._decoder.decode(self.payload)
            else:
                frame, self._waiting = self._waiting[: self._samples], self._waiting[self._samples :]
            if len(frame) < self._samples:
                frame = np.concatenate((frame, np.zeros(self._samples - len(frame), np.int16)))
            self._made = self._resampler.convert(frame)
        return self._made


class PlayedSource:
    """A clip or a tone, once or in a loop. It may be made quieter while another source sounds.

    Args:
        pcm: int16, shape ``(samples,)``, at ``rate`` Hz, at least 20 ms.
        gain_db: gain, decibels; negative is quieter.
        loop: play it again and again.
        under: the source that makes this one quieter while it sounds. None: nothing does.
        duck_db: attenuation meanwhile, decibels.
    """

    _ATTACK_DB, _RELEASE_DB = 3.0, 0.5
    """Most change of the gain in a tick: down for speech within 0.1 s, up again slowly, so that pauses between words do
    not pump."""

    def __init__(
        self,
        pcm: Pcm,
        rate: int,
        *,
        gain_db: float = 0.0,
        loop: bool = True,
        under: Source | None = None,
        duck_db: float = 0.0,
    ) -> None:
        self.format: AudioFormat | None = None
        self.payload: bytes | None = None
        self.rate = rate
        self.sounds = False
        self._pcm = pcm
        self._loop = loop
        self._gain_db = gain_db
        self._under = under
        self._duck_db = duck_db
        self._samples = rate * TICK_MS // 1000
        self._at = 0
        self._db = gain_db
        self._made: Pcm | None = None
        self.use_rate(rate)

    def become_background(self, under: Source | None, *, gain_db: float, duck_db: float) -> None:
        """Play at this gain, and quieter while another source sounds."""
        self._under, self._gain_db, self._duck_db = under, gain_db, duck_db
        self._db = gain_db

    @property
    def over(self) -> bool:
        """True if the sound has ended."""
        return not self._loop and self._at >= len(self._pcm)

    def use_rate(self, rate: int) -> None:
        """Make samples at this rate from now on, Hz."""
        self._resampler = FrameResampler(self.rate, rate)

    def advance(self, now: float) -> bool:
        """Begin the next 20 ms."""
        self._made = None
        self.sounds = not self.over
        return self.sounds

    def pcm(self) -> Pcm:
        """Return the samples of these 20 ms."""
        if self._made is None:
            self._made = self._resampler.convert(self._ramped(self._frame()))
        return self._made

    def _frame(self) -> Pcm:
        frame = self._pcm[self._at : self._at + self._samples]
        self._at += len(frame)
        if len(frame) < self._samples:
            self._at = self._samples - len(frame) if self._loop else len(self._pcm)
            rest = self._pcm[: self._at] if self._loop else np.zeros(self._samples - len(frame), np.int16)
            frame = np.concatenate((frame, rest))
        return frame

    def _ramped(self, frame: Pcm) -> Pcm:
        ducked = self._under is not None and self._under.sounds
        aim = self._gain_db - (self._duck_db if ducked else 0.0)
        before, self._db = self._db, max(min(aim, self._db + self._RELEASE_DB), self._db - self._ATTACK_DB)
        first, last = 10 ** (before / 20), 10 ** (self._db / 20)
        if first == last:
            return amplified(frame, last)
        scaled = frame * np.linspace(first, last, len(frame), dtype=np.float32)
        return np.clip(scaled, -32768.0, 32767.0).astype(np.int16)
