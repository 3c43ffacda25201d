"""Speech over a link that loses packets: how much of it is still understood.

    python benchmarks/loss.py --loss 0 0.1 0.2 --json loss.json

Thirty sentences in the embedded voice are sent in packets of 20 ms. Each packet is lost with the same probability,
independent of the others. The embedded recogniser hears what arrives.

    caller   a browser's Opus (32 kb/s, FEC) or a phone's G.711 to the server: jitter buffer and concealment of the
             product. The voice is lowered by a sixth, as a caller's.
    bot      the Opus of the product to a decoder that uses FEC and concealment, as browsers do
    bot-     the same decoder without FEC

Words recognised are 1 - (wrong, missing and additional words) / words. A sentence is understood if at most one word in
five is wrong. The seed is fixed. Voice detection is not part of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hibari import Hibari
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.recogniser import PITCH, QUESTIONS, SPEECH_DBOV, word_errors, words
from gateway.media.jitter_buffer import JitterBuffer
from gateway.recognition.moonshine import Moonshine
from talkspurt.bench.results import commit, machine
from voicecodecs import opus
from voicecodecs.conceal import ConcealingDecoder
from voicecodecs.pcm import dbov, to_float32, to_int16, trim_silence
from voicecodecs.registry import AudioFormat, encoder
from voicecodecs.resample import Resampler

SENTENCES = (
    *QUESTIONS,
    "The heating in my flat does not work.",
    "Could you tell me the price of a ticket to London?",
    "I will pay the bill at the end of the month.",
    "My new telephone number is six five two three nine.",
    "There is a mistake in the last invoice.",
    "Please call me back on Monday morning.",
    "Can I bring my dog to the hotel?",
    "We need two more chairs for the meeting.",
    "The doctor is not available today.",
    "I would like to speak with the sales team.",
)
UNDERSTOOD = 0.2
VOICE_HZ = 24_000
HEARD_HZ = 16_000
FRAME_S = 0.02

Pcm = NDArray[np.int16]


def spoken(voice: Hibari, text: str, rate: int, pitch: float) -> list[Pcm]:
    """Frames of 20 ms, with 0.3 s of silence around the words."""
    resampler = Resampler(int(VOICE_HZ * pitch) // 100 * 100, rate)
    pcm = np.concatenate([resampler.process(voice(text).astype(np.float32)), resampler.flush()])
    start, end = trim_silence(pcm, rate)
    pcm = pcm[start:end]
    pcm = np.pad(pcm * 10 ** ((SPEECH_DBOV - dbov(pcm)) / 20), 3 * rate // 10)
    size = int(rate * FRAME_S)
    whole = to_int16(np.clip(pcm[: len(pcm) // size * size], -1, 1).astype(np.float32))
    return list(whole.reshape(-1, size))


def to_server(packets: list[bytes], lost: NDArray[np.bool_], fmt: AudioFormat) -> Iterator[Pcm]:
    """Packets that the uplink decodes, in order, with places for lost ones."""
    order, decoder = JitterBuffer(fmt.rtp_clock_hz), ConcealingDecoder(fmt)
    step = int(fmt.rtp_clock_hz * FRAME_S)
    ready: list[bytes] = []
    for number, packet in enumerate(packets):
        now = number * FRAME_S
        if order.deadline is not None and order.deadline <= now:
            ready += order.expire(now=now)
        if not lost[number]:
            ready += order.add(number, number * step, packet, now=now)
    for at, payload in enumerate(ready):
        yield decoder.decode(payload, b"" if payload else b"".join(ready[at + 1 : at + 2]))


def to_browser(packets: list[bytes], lost: NDArray[np.bool_], *, fec: bool) -> Iterator[Pcm]:
    """The samples that a browser plays."""
    decoder, samples = opus.Decoder(), int(48_000 * FRAME_S)
    for number, packet in enumerate(packets):
        if not lost[number]:
            yield decoder.decode(packet)
            continue
        following = number + 1
        has_copy = fec and following < len(packets) and not lost[following]
        yield decoder.conceal(samples, packets[following] if has_copy else b"")


def measured(recogniser: Moonshine, frames: Callable[[str, int], tuple[Iterator[Pcm], int]]) -> dict[str, Any]:
    """Return the figures over all sentences. ``frames`` makes the sound that arrives, and its rate."""
    all_words = wrong = understood = 0
    for number, text in enumerate(SENTENCES):
        pieces, rate = frames(text, number)
        resampler = Resampler(rate, HEARD_HZ)
        pcm = np.concatenate([resampler.process(to_float32(np.concatenate(list(pieces)))), resampler.flush()])
        said = words(text)
        errors = word_errors(said, words(recogniser(pcm)))
        all_words, wrong = all_words + len(said), wrong + errors
        understood += errors <= UNDERSTOOD * len(said)
    return {
        "sentences": len(SENTENCES),
        "understood": round(understood / len(SENTENCES), 3),
        "words": round(1 - wrong / all_words, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--loss", type=float, nargs="+", default=[0.0, 0.1, 0.2])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    voice, recogniser = Hibari(), Moonshine()
    rows = []

    def losses(count: int, share: float, number: int) -> NDArray[np.bool_]:
        return np.random.default_rng([7, number]).random(count) < share

    for share in args.loss:

        def caller(text: str, number: int, *, fmt: AudioFormat, share: float = share) -> tuple[Iterator[Pcm], int]:
            is_opus = fmt.encoding == "OPUS"
            frames = spoken(voice, text, 48_000 if is_opus else fmt.sample_rate, PITCH)
            encode = (
                opus.Encoder(bitrate=32_000, complexity=9, fec_loss_percent=20) if is_opus else encoder(fmt)
            ).encode
            packets = [encode(frame) for frame in frames]
            return to_server(packets, losses(len(packets), share, number), fmt), fmt.sample_rate

        def bot(text: str, number: int, *, fec: bool, share: float = share) -> tuple[Iterator[Pcm], int]:
            encode = encoder(AudioFormat("OPUS", 48_000)).encode
            packets = [encode(frame) for frame in spoken(voice, text, 48_000, 1.0)]
            return to_browser(packets, losses(len(packets), share, number), fec=fec), 48_000

        ways: dict[str, Callable[[str, int], tuple[Iterator[Pcm], int]]] = {
            "caller OPUS": lambda text, n: caller(text, n, fmt=AudioFormat("OPUS", 24_000)),
            "caller PCMU": lambda text, n: caller(text, n, fmt=AudioFormat("PCMU")),
            "bot OPUS": lambda text, n: bot(text, n, fec=True),
            "bot- OPUS": lambda text, n: bot(text, n, fec=False),
        }
        for way, frames in ways.items():
            row = {"way": way, "loss": share, **measured(recogniser, frames)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps({"commit": commit(), "machine": machine(), "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
