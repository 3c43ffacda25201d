"""Recording beeps and what is none: ``python -m benchmarks.people.beeps --half table``. See README.md here.

Beeps are made by this program (uniform in frequency and length, and at pitches that machines use), but for those of the
package of Asterisk's sounds. Each follows a recorded sentence. Ringing, busy and information tones are those of
``tests/vectors/tones``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.people.clips import ASTERISK, HALVES, Sounds, read
from benchmarks.people.figures import delays, rate, share
from benchmarks.people.rooms import RATE, Pcm, at_level
from gateway.answering.tones import ToneDetector
from gateway.seams.uplink import LineTone
from tests.gateway.answering.line_sounds import cadence, silence, steps, sweep, tone
from voicecodecs.dtmf import tones as dtmf_tones
from voicecodecs.g711 import decode_alaw, decode_ulaw, encode_alaw, encode_ulaw
from voicecodecs.pcm import to_float32

COUNTRIES = ("us", "uk", "de", "fr", "it", "es", "au", "in", "br", "cn")
PITCHES_HZ = (440, 480, 500, 600, 640, 660, 700, 800, 850, 900, 950, 1000, 1004, 1100, 1200, 1400, 1500, 2000)
"""Pitches of recording tones in public code, configurations and reports."""
RECORDED = ("beep", "ascending-2tone", "descending-2tone")
VECTORS = Path(__file__).parents[2] / "tests/vectors/tones/call_progress.json"
KINDS = ("any pitch", "usual pitch", "sweep", "steps", "two at once", "recorded", "fading")
SHARES = (0.3, 0.25, 0.1, 0.1, 0.05, 0.1, 0.1)
FADED = 10 ** (-12 / 20)
"""Level at which a tone that fades is over, as a share of its own."""
LIMIT_S = 0.1
_FRAME = RATE // 50


@dataclass(frozen=True, slots=True)
class Trial:
    """A sound with one beep."""

    kind: str
    pcm: Pcm
    ended_s: float
    """End of the beep."""
    what: str


def trials(sounds: Sounds, folder: Path, rng: np.random.Generator, count: int) -> Iterator[Trial]:
    """Make greetings with a beep."""
    speech = [clip for speaker in sounds.callers for clip in sounds.clips("sentence", speaker)]
    recorded = [
        read(path)
        for speaker in sounds.callers
        for name in RECORDED
        for path in (folder / ASTERISK / speaker).glob(f"{name}.*")
    ]
    for _ in range(count):
        dbov = float(rng.uniform(-38, -12))
        kind, what, beep = _beep(rng, dbov, recorded)
        greeting = at_level(speech[int(rng.integers(len(speech)))].pcm, float(rng.normal(-26, 3)))
        before = np.concatenate((silence(0.4), greeting, silence(float(rng.uniform(0.05, 1.2)))))
        pcm = np.concatenate((before, beep, silence(7.0)))
        yield Trial(
            kind=kind,
            what=f"{what}, {dbov:.0f} dBov",
            pcm=line(pcm, rng, min(dbov - 16, float(rng.uniform(-72, -45)))),
            ended_s=(len(before) + _end(beep)) / RATE,
        )


def _beep(rng: np.random.Generator, dbov: float, recorded: list[Pcm]) -> tuple[str, str, Pcm]:
    """Return kind, description and sound."""
    hz, other = (float(each) for each in rng.uniform(350, 2200, 2))
    seconds = float(rng.uniform(0.1, 2.0))
    kind = str(rng.choice(KINDS, p=SHARES))
    if kind == "any pitch":
        beep = tone(hz, seconds=seconds, dbov=dbov, edge_s=float(rng.choice([0, 0.002, 0.01])))
    elif kind == "usual pitch":
        hz = float(rng.choice(PITCHES_HZ))
        beep = tone(hz, seconds=seconds, dbov=dbov)
    elif kind == "sweep":
        other = float(np.clip(hz * rng.choice([0.5, 0.7, 1.4, 2.0]), 350, 2200))
        beep = sweep(hz, other, seconds=(seconds := float(rng.uniform(0.15, 1.0))), dbov=dbov)
    elif kind == "steps":
        beep = steps(hz, other, seconds=(seconds := float(rng.uniform(0.1, 0.5))), dbov=dbov)
    elif kind == "two at once":
        hz, other = max(hz, 700.0), max(other, 700.0)
        beep = tone(hz, other, seconds=(seconds := max(seconds, 0.2)), dbov=dbov)
    elif kind == "fading":
        hz, seconds = max(hz, 500.0), float(rng.uniform(0.1, 0.5))
        other = hz
        beep = tone(hz, seconds=4 * seconds, dbov=dbov, edge_s=0.001)
        beep *= np.exp(-np.arange(len(beep)) / (seconds * RATE)).astype(np.float32)
    else:
        beep = at_level(recorded[int(rng.integers(len(recorded)))], dbov)
    return kind, f"{hz:.0f} Hz, {other:.0f} Hz, {seconds:.2f} s", beep


def _end(beep: Pcm) -> int:
    """Return the sample at which a tone ends, or has faded and is followed by a pause."""
    levels = np.sqrt(np.square(beep[: len(beep) // 80 * 80].reshape(-1, 80)).mean(axis=1))
    loud = np.flatnonzero(levels > FADED * levels.max())
    pauses = np.flatnonzero(np.diff(loud) > 10)
    last = int(loud[pauses[0]] if len(pauses) else loud[-1])
    return len(beep) if last >= len(levels) - 2 else (last + 1) * 80


def others(sounds: Sounds, folder: Path) -> Iterator[tuple[str, Pcm]]:
    """Make the sounds without a beep, by kind."""
    pause = silence(0.5)
    speakers = [clip.pcm for each in (*sounds.callers, *sounds.others) for clip in sounds.clips("sentence", each)]
    words = [clip.pcm for each in sounds.callers for clip in sounds.clips("word", each)]
    more = [clip.pcm for clip in sounds.clips("shout", "")]
    yield "speech", np.concatenate([part for pcm in (*speakers, *words, *more) for part in (pcm, pause)])
    yield "music", np.concatenate([clip.pcm for clip in sounds.clips("music", "")])
    yield "noises", np.concatenate([part for clip in sounds.clips("noise", "") for part in (clip.pcm, pause)])
    vectors = json.loads((VECTORS).read_text())
    tones = [cadence(each, 18) for country in COUNTRIES for each in vectors["countries"][country].values()]
    tones += [cadence("1100/500,0/3000", 18), cadence("!2100/3000,0/1000", 6)]
    yield "tones", np.concatenate([part for each in tones for part in (each, silence(8))])
    yield "touch tones", dtmf_tones("0123456789*#ABCD" * 8, RATE)


def line(pcm: Pcm, rng: np.random.Generator, noise_dbov: float) -> Pcm:
    """Return the sound of a line with noise and G.711."""
    noisy = pcm + rng.normal(0.0, 10 ** (noise_dbov / 20), len(pcm))
    linear = (np.clip(noisy, -1, 1) * 32767).astype(np.int16)
    return to_float32(decode_ulaw(encode_ulaw(linear)) if rng.random() < 0.5 else decode_alaw(encode_alaw(linear)))


def heard(pcm: Pcm) -> list[tuple[float, LineTone]]:
    """Return each report with the second at which its frame has arrived."""
    detector = ToneDetector()
    return [
        ((at + _FRAME) / RATE, each)
        for at in range(0, len(pcm) - _FRAME + 1, _FRAME)
        for each in detector.process(pcm[at : at + _FRAME])
    ]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sounds", type=Path, default=Path("build/people"), help="folder of the unpacked packages")
    parser.add_argument("--half", choices=HALVES, default="tuning")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--misses", action="store_true", help="print each beep that was not found in time")
    arguments = parser.parse_args()
    rng = np.random.default_rng(HALVES.index(arguments.half))
    sounds = Sounds(arguments.sounds, arguments.half)
    found: dict[str, list[int]] = {}
    delay_s: list[float] = []
    twice = 0
    for trial in trials(sounds, arguments.sounds, rng, arguments.trials):
        beeps = [at - trial.ended_s for at, each in heard(trial.pcm) if each.kind == "beep"]
        in_time = [each for each in beeps if 0 <= each <= LIMIT_S]
        counts = found.setdefault(trial.kind, [0, 0, 0])
        counts[0] += bool(in_time)
        counts[1] += bool(beeps) and not in_time
        counts[2] += 1
        delay_s += in_time[:1]
        twice += len(beeps) > 1
        if not in_time and arguments.misses:
            print(f"    {trial.kind}: {trial.what}, reported: {heard(trial.pcm)}")
    for kind, (good, late, all_) in sorted(found.items()):
        print(f"| {kind} | {share(good, all_)} | late: {late} |")
    print(f"| all | {share(sum(each[0] for each in found.values()), arguments.trials)} | reported twice: {twice} |")
    print(f"| delay p50 / p95, ms | {delays(delay_s)} |")
    for kind, pcm in others(sounds, arguments.sounds):
        begun = time.thread_time()
        false = [(at, each) for at, each in heard(line(pcm, rng, -66.0)) if each.kind == "beep"]
        cost_us = (time.thread_time() - begun) / (len(pcm) / _FRAME) * 1e6
        print(f"| {kind} | false beeps a minute {rate(len(false), len(pcm) / RATE / 60)} | {cost_us:.0f} us a frame |")
        for at, each in false:
            print(f"    {at:.1f} s: {each.length_s} s, {each.hz} Hz")


if __name__ == "__main__":
    main()
