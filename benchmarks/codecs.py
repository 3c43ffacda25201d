"""Microseconds per 20 ms frame of every codec and resampler, and per 2 s chunk where chunks come. One JSON line each.

Run: ``OPENBLAS_NUM_THREADS=1 PYTHONPATH=codecs python benchmarks/codecs.py``. Each figure is the median of 15 blocks.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np

from voicecodecs.dtmf import Detector
from voicecodecs.fade import faded
from voicecodecs.packetizer import Packetizer
from voicecodecs.pcm import to_int16
from voicecodecs.registry import AudioFormat, decoder, encoder
from voicecodecs.resample import Resampler

FORMATS = [
    AudioFormat("PCMU"),
    AudioFormat("PCMA"),
    AudioFormat("G722", 16000),
    AudioFormat("L16", 16000),
    AudioFormat("OPUS", 24000),
    AudioFormat("OPUS", 48000),
]
RATES = (8000, 16000, 22050, 24000, 48000)


def microseconds(work: Callable[[], object], runs: int) -> float:
    work()
    blocks = []
    for _ in range(15):
        start = time.perf_counter()
        for _ in range(runs):
            work()
        blocks.append((time.perf_counter() - start) / runs * 1e6)
    return round(statistics.median(blocks), 1)


def voice(seconds: float, rate: int) -> np.ndarray:
    """Harmonics of a gliding pitch with syllables and breath: costs an adaptive codec what speech costs it."""
    t = np.arange(round(seconds * rate)) / rate
    pitch = 2 * np.pi * (160 * t + 10 * np.sin(2 * np.pi * 0.7 * t))
    wave = sum(np.sin(k * pitch) / k for k in range(1, 20)) * (0.55 + 0.45 * np.sin(2 * np.pi * 4 * t))
    return (0.12 * wave + 0.003 * np.random.default_rng(0).standard_normal(len(t))).astype(np.float32)


def report(**fields: object) -> None:
    print(json.dumps({"benchmark": "codecs", "machine": platform.machine(), **fields}))


def main() -> None:
    for fmt in FORMATS:
        frames = to_int16(voice(2, fmt.sample_rate)).reshape(-1, fmt.frame_samples)
        enc, dec = encoder(fmt), decoder(fmt)
        payloads = [enc.encode(frame) for frame in frames]
        name = f"{fmt.encoding} {fmt.sample_rate}"
        encode_us = microseconds(lambda enc=enc, frames=frames: [enc.encode(f) for f in frames], 1) / len(frames)
        decode_us = microseconds(lambda dec=dec, payloads=payloads: [dec.decode(p) for p in payloads], 1) / len(frames)
        report(what=name, encode_us_per_frame=round(encode_us, 1), decode_us_per_frame=round(decode_us, 1))
        packetizer = Packetizer(fmt, 24000)
        chunk, short = voice(2, 24000), voice(0.02, 24000)
        report(
            what=f"packetizer 24000 to {name}",
            us_per_2s_chunk=microseconds(lambda p=packetizer, c=chunk: p.push(c), 1),
            us_per_frame=microseconds(lambda p=packetizer, c=short: p.push(c), 50),
        )
        if fmt.encoding in ("PCMU", "L16"):
            report(what=f"fade {name}", us=microseconds(lambda f=fmt, p=payloads[0]: faded(f, p), 100))
    for rate_in in RATES:
        for rate_out in RATES:
            if rate_in == rate_out:
                continue
            resampler = Resampler(rate_in, rate_out)
            chunk, short = voice(2, rate_in), voice(0.02, rate_in)
            report(
                what=f"resample {rate_in} to {rate_out}",
                us_per_2s_chunk=microseconds(lambda r=resampler, c=chunk: r.process(c), 3),
                us_per_frame=microseconds(lambda r=resampler, c=short: r.process(c), 50),
                delay_ms=round(resampler.delay_s * 1000, 2),
            )
    detector, short = Detector(8000), voice(0.02, 8000)
    report(what="touch-tone detector 8000", us_per_frame=microseconds(lambda: detector.process(short), 50))


if __name__ == "__main__":
    main()
