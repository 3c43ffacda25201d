"""The map of who hears whom, and the sum that each one hears in the next 20 ms. Pure: time is an argument, and frames
leave through the listeners' ``send``.

A listener that hears exactly one source, unchanged and in its own codec, gets the payloads untouched. Between the two
laws of G.711 each byte is translated, which is what decoding and encoding would give. If that source is a leg whose
packets come in real time, they do not even wait for a tick (``LegSource.relay``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from gateway.mixing.sources import TICK_MS, LegSource, Pcm, PlayedSource, PlayoutSource, Source
from voicecodecs import opus
from voicecodecs.g711 import TRANSLATIONS
from voicecodecs.mixing import FrameResampler, amplified, mixed
from voicecodecs.registry import AudioFormat, encoder

RATES_HZ = (8000, 16000, 24000, 48000)
"""Rates at which a mixer adds. Opus has all of them."""

Send = Callable[[bytes, float], object]
"""Sends a frame with its time, as ``gateway.seams.leg.MediaLeg.send_frame`` does."""


class MixListener:
    """One who hears a mix.

    Args:
        fmt: format of the frames.
        send: sends a frame with its time on the timetable.
        takes_bursts: True if the far end has a large buffer, so that payloads may be passed on as they come.
    """

    def __init__(self, fmt: AudioFormat, send: Send, *, takes_bursts: bool = False) -> None:
        self.format = fmt
        self.send = send
        self.takes_bursts = takes_bursts
        self.rate = fmt.sample_rate
        self._rate = 0
        self._waiting: Pcm = np.zeros(0, np.int16)
        """Samples of a frame that is longer than a tick."""
        self.use_rate(self.rate)

    def use_rate(self, rate: int) -> None:
        """Take mixes of this rate from now on, Hz."""
        if rate == self._rate:
            return
        self._rate = rate
        fmt = self.format
        if fmt.encoding == "OPUS" and rate in opus.SAMPLE_RATES:
            fmt = replace(fmt, sample_rate=rate)
        self._encode = encoder(fmt).encode
        self._resampler = FrameResampler(rate, fmt.sample_rate)
        self._samples = fmt.frame_samples
        self._tick_samples = fmt.sample_rate * TICK_MS // 1000
        self._waiting = self._waiting[:0]

    def takes(self, source: Source) -> bool:
        """Return True if the source's present payload is a frame of this listener."""
        fmt = source.format
        return source.payload is not None and not len(self._waiting) and fmt is not None and self.speaks_as(fmt)

    def speaks_as(self, fmt: AudioFormat) -> bool:
        """Return True if payloads of this format may be sent without decoding."""
        ours = self.format
        laws = (fmt.encoding, ours.encoding)
        return (laws in TRANSLATIONS or fmt.encoding == ours.encoding) and ours.ptime_ms == TICK_MS and (
            fmt.sample_rate == ours.sample_rate or fmt.encoding == "OPUS"  # an Opus packet has no rate
        )  # fmt: skip

    def relay(self, fmt: AudioFormat) -> Send:
        """Return the function that sends payloads of this format, for which ``speaks_as`` is true."""
        table = TRANSLATIONS.get((fmt.encoding, self.format.encoding))
        if table is None:
            return self.send
        send = self.send
        return lambda payload, now: send(payload.translate(table), now)

    def hear(self, pcm: Pcm, now: float) -> None:
        """Take the next 20 ms, and send the frames that are complete."""
        pcm = self._resampler.convert(pcm)
        if len(self._waiting):
            pcm = np.concatenate((self._waiting, pcm))
        start = 0
        while len(pcm) - start >= self._samples:
            self.send(
                self._encode(pcm[start : start + self._samples]), now + start / self._tick_samples * TICK_MS / 1000
            )
            start += self._samples
        self._waiting = pcm[start:]

    def hear_nothing(self, now: float) -> None:
        """Pass 20 ms in which nothing sounds. A frame that has begun is completed with silence."""
        if len(self._waiting):
            self.hear(np.zeros(self._rate * TICK_MS // 1000, np.int16), now)


class Watch(Protocol):
    """Hears every leg by itself, whether others hear it or not. Then no payload passes unchanged as it comes."""

    @property
    def hears_bots(self) -> bool:
        """True: ``hear`` is also called for the bots' voices."""
        ...

    def hear(self, name: str, pcm: Pcm) -> None:
        """Take 20 ms of a leg, at the mixer's rate."""
        ...

    def tick(self, now: float) -> None:
        """All legs of these 20 ms have been heard."""
        ...


class Mixer:
    """Sources, listeners, and gains between them. The names of both are chosen by the owner.

    Args:
        on_change: called when ``idle`` may have changed.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.rate = RATES_HZ[0]
        """Present rate of the mixes, Hz."""
        self.idle = True
        """True if nothing needs a tick: no one hears anything, or every payload is relayed as it comes."""
        self.watch: Watch | None = None
        self._on_change = on_change
        self._speaks = False
        """True if the bot spoke in the last tick, or is about to."""
        self._sources: dict[str, Source] = {}
        self._listeners: dict[str, MixListener] = {}
        self._gains: dict[str, dict[str, float]] = {}
        """Factor by source, by listener."""

    # --- who hears whom ----------------------------------------------------------------------------------------------

    def add_source(self, name: str, source: Source) -> None:
        """Add a source, which no one hears yet."""
        source.use_rate(self.rate)
        self._sources[name] = source

    def add_listener(self, name: str, listener: MixListener) -> None:
        """Add a listener, who hears nothing yet."""
        self._listeners[name] = listener
        self._gains[name] = {}

    def hear(self, listener: str, source: str, gain_db: float = 0.0) -> None:
        """Let a listener hear a source, or change its gain.

        Raises:
            KeyError: there is no such listener or source.
        """
        if source not in self._sources:
            raise KeyError(source)
        self._gains[listener][source] = 10 ** (gain_db / 20)
        self.settle()

    def unhear(self, listener: str, source: str) -> None:
        """Let a listener hear a source no more. No effect if it does not."""
        if self._gains.get(listener, {}).pop(source, None) is not None:
            self.settle()

    def set_heard(self, listener: str, source: str, heard: bool) -> None:
        """Let a listener hear a source, at its present gain if it does already, or let it hear the source no more."""
        if not heard:
            self.unhear(listener, source)
        elif source not in self._gains[listener]:
            self.hear(listener, source)

    def heard_by(self, listener: str) -> dict[str, float]:
        """Return the factors of the sources that a listener hears, by name."""
        return dict(self._gains.get(listener, {}))

    def remove_source(self, name: str) -> None:
        """Remove a source. No effect if there is none."""
        source = self._sources.pop(name, None)
        if isinstance(source, LegSource):
            source.deliver(heard=False, relay=None)
        for heard in self._gains.values():
            heard.pop(name, None)
        self.settle()

    def remove_listener(self, name: str) -> None:
        """Remove a listener. No effect if there is none."""
        self._listeners.pop(name, None)
        self._gains.pop(name, None)
        self.settle()

    def settle(self) -> None:
        """Choose the rate and what is relayed, after sources, listeners or gains have changed."""
        self._choose_rate()
        relayed = self._relays() if self.watch is None else {}
        heard = {name for gains in self._gains.values() for name in gains}
        if self.watch is not None:
            heard |= {name for name, source in self._sources.items() if isinstance(source, LegSource)}
        for name, source in self._sources.items():
            if isinstance(source, LegSource):
                listener = relayed.get(name)
                relay = None if listener is None or source.format is None else listener.relay(source.format)
                source.deliver(heard=name in heard, relay=relay)
        self._speaks = not all(map(self._is_at_rest, self._voices()))
        self.idle = all(name in relayed or self._is_at_rest(self._sources[name]) for name in heard)
        self._on_change()

    def _choose_rate(self) -> None:
        """Choose the highest rate at which anyone hears anyone: more would only resample."""
        highest = max(
            (
                min(self._sources[source].rate, self._listeners[listener].rate)
                for listener, gains in self._gains.items()
                for source in gains
            ),
            default=RATES_HZ[0],
        )
        rate = next((each for each in RATES_HZ if each >= highest), RATES_HZ[-1])
        if rate != self.rate:
            self.rate = rate
            for source in self._sources.values():
                source.use_rate(rate)

    def _relays(self) -> dict[str, MixListener]:
        """Return the listener of each source that may be relayed, by the source's name."""
        listeners_of: dict[str, list[str]] = {}
        for hearing, gains in self._gains.items():
            for heard in gains:
                listeners_of.setdefault(heard, []).append(hearing)
        relays: dict[str, MixListener] = {}
        for name, heard_by in listeners_of.items():
            source = self._sources[name]
            if not isinstance(source, LegSource) or source.format is None or len(heard_by) != 1:
                continue
            (only,) = heard_by
            listener, gains = self._listeners[only], self._gains[only]
            others = (self._sources[other] for other in gains if other != name)
            if (
                (source.in_real_time or listener.takes_bursts)
                and gains[name] == 1.0
                and listener.speaks_as(source.format)
                and all(self._is_at_rest(other) for other in others)
            ):
                relays[name] = listener
        return relays

    @staticmethod
    def _is_at_rest(source: Source) -> bool:
        """Return True if a source has nothing to say until it asks for ``settle``."""
        return isinstance(source, PlayoutSource) and source.at_rest

    # --- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Send every listener its next 20 ms. ``now``: the tick's time on the timetable, seconds."""
        for listener in self._listeners.values():
            listener.use_rate(self.rate)
        for source in self._sources.values():
            source.advance(now)
        if self.watch is not None:
            for name, source in self._sources.items():
                if source.sounds and (
                    isinstance(source, LegSource) or (self.watch.hears_bots and isinstance(source, PlayoutSource))
                ):
                    self.watch.hear(name, source.pcm())
            self.watch.tick(now)
        for name, listener in self._listeners.items():
            heard = [
                (source, factor)
                for source, factor in ((self._sources[each], factor) for each, factor in self._gains[name].items())
                if source.sounds
            ]
            if not heard:
                listener.hear_nothing(now)
            elif len(heard) == 1 and heard[0][1] == 1.0 and listener.takes(heard[0][0]):
                source = heard[0][0]
                assert source.payload is not None and source.format is not None
                listener.relay(source.format)(source.payload, now)
            else:
                listener.hear(mixed([amplified(source.pcm(), factor) for source, factor in heard]), now)
        over = [name for name, source in self._sources.items() if isinstance(source, PlayedSource) and source.over]
        for name in over:
            self.remove_source(name)
        if self._speaks and all(map(self._is_at_rest, self._voices())):
            self.settle()  # what was relayed before the bot spoke is relayed again

    def _voices(self) -> list[PlayoutSource]:
        return [source for source in self._sources.values() if isinstance(source, PlayoutSource)]
