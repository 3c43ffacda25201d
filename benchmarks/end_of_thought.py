"""When is an utterance over? Premature ends and waits on human telephone speech, with and without the turn model.

    apt-get download asterisk-core-sounds-{en,es,fr,it,ru}-wav ktuberling-data
    for f in *.deb; do dpkg -x $f SPEECH; done
    python benchmarks/end_of_thought.py --speech SPEECH --json end_of_thought.json

Five professional speakers say sentences at 8 kHz, and volunteers single words, each with a microphone of their own.
Each clip is brought to -26 dBov, coded as mu-law between noise of -60 dBov, and heard by the real VAD, the real turn
model and the real ``Patience``, on the clock of the samples. An answer of the model comes as much later as it took of
this machine's processor. Three scenes:

    whole       the sentence, then silence. The wait is from the last sound to the end of the utterance. It ends
                prematurely if that is before the last sound.
    word        a volunteer's clip, in the same way. Its last sound is the last that is speech to the VAD too:
                breath and the noise of the room go on behind it.
    hesitation  the sentence with a second of silence where its level is lowest in the middle. It ends prematurely if
                that is before the second part. The cut is often within a phrase, and without the lengthened syllable or
                the "uhm" by which people announce that they go on: harder than life.

``SENTENCES`` are the clips that are one sentence in English; their translations may be two. ``--every N`` takes each
Nth.
"""

from __future__ import annotations

import argparse
import json
import time
import wave
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.call.hearing.end_of_thought import Patience
from gateway.clips.clips import decode
from gateway.config import RecogniserConfig
from gateway.recognition.smart_turn import SmartTurn, model_file
from gateway.uplink.vad import LULL_S, MIN_SILENCE_S, SAMPLE_RATE, WINDOW_S, WINDOW_SAMPLES, SpeechDetector, Window
from gateway.uplink.windows import measured_db
from gateway.uplink.worker import silero_model
from talkspurt.bench.results import commit, machine
from tts_engine.onnx_runtime import onnxruntime
from voicecodecs import g711
from voicecodecs.pcm import dbov, to_float32, to_int16
from voicecodecs.resample import Resampler

Pcm = NDArray[np.float32]
SENTENCES = (
    *("agent-loggedoff", "agent-loginok", "agent-newlocation", "agent-pass", "auth-thankyou", "conf-full"),
    *("cannot-complete-as-dialed", "conf-getchannel", "conf-getconfno", "conf-getpin", "conf-kicked"),
    *("conf-leaderhasleft", "conf-lockednow", "conf-noempty", "conf-now-muted", "conf-now-recording", "conf-onlyone"),
    *("conf-onlyperson", "conf-placeintoconf", "conf-unlockednow", "conf-waitforleader", "confbridge-invalid"),
    *("confbridge-only-participant", "confbridge-pin", "confbridge-removed", "dir-nomatch", "dir-nomore"),
    *("enter-num-blacklist", "feature-not-avail-line", "goodbye", "hello", "hello-world", "number-not-answering"),
    *("one-moment-please", "pbx-transfer", "please-try-again", "please-try-call-later", "pls-hold-while-try"),
    *("privacy-thankyou", "queue-thankyou", "queue-youarenext", "simul-call-limit-reached"),
    *("something-terribly-wrong", "sorry-youre-having-problems", "tt-somethingwrong", "vm-deleted", "vm-undeleted"),
    *("vm-enter-num-to-call", "vm-goodbye", "vm-mailboxfull"),
    *("vm-msgsaved", "vm-newpassword", "vm-nobodyavail", "vm-nomore", "vm-passchanged", "vm-pls-try-again"),
    *("vm-reenterpassword", "vm-tempremoved", "vm-whichbox"),
)
SPEECH_DBOV, NOISE_DBOV = -26.0, -60.0
BEFORE_S, AFTER_S, HESITATION_S = 0.5, 2.0, 1.0
FAINT_DB = 35.0
"""What is so much fainter than the loudest of a clip is no sound of it."""
_RATE = np.array(SAMPLE_RATE, np.int64)
_LEAD_S = 0.25  # what the recogniser, and so the model, hears before an onset


@dataclass(frozen=True)
class Heard:
    """An event of the VAD, and for a lull what the model says of it."""

    kind: str
    at: float
    since: float = 0.0
    probability: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Clip:
    """A scene with one sentence. Times in seconds from the beginning."""

    language: str
    name: str
    scene: str
    ends: float
    """When the last sound ends, or for a hesitation when the second part begins: an end before it is premature."""
    heard: tuple[Heard, ...]


class Ears:
    """The networks."""

    def __init__(self, model: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._silero = onnxruntime.InferenceSession(str(silero_model()), options)
        self._model = SmartTurn(model)

    def last_speech_s(self, pcm: Pcm) -> float:
        """When the last window ends that Silero takes for speech and that is not faint. 0: there is none."""
        windows = [pcm[at : at + WINDOW_SAMPLES] for at in range(0, len(pcm) - WINDOW_SAMPLES + 1, WINDOW_SAMPLES)]
        levels = [dbov(window) for window in windows]
        state, context, last = np.zeros((2, 1, 128), np.float32), np.zeros(32, np.float32), 0.0
        for number, window in enumerate(windows, 1):
            given = {"input": np.concatenate((context, window))[None], "state": state, "sr": _RATE}
            ((probability,),), state = self._silero.run(None, given)
            context = window[-32:]
            if probability >= 0.5 and levels[number - 1] > max(levels) - FAINT_DB:
                last = number * WINDOW_S
        return last

    def hear(self, pcm: Pcm) -> Iterator[Heard]:
        """What a call would hear of audio at 8 kHz."""
        detector = SpeechDetector(lull_s=LULL_S)
        wide = Resampler(SAMPLE_RATE, 16000).process(pcm)
        state, context, begun = np.zeros((2, 1, 128), np.float32), np.zeros(32, np.float32), None
        for at in range(0, len(pcm) - WINDOW_SAMPLES + 1, WINDOW_SAMPLES):
            window = np.concatenate((context, pcm[at : at + WINDOW_SAMPLES]))
            context, end = window[-32:], (at + WINDOW_SAMPLES) / SAMPLE_RATE
            given = {"input": window[None], "state": state, "sr": _RATE}
            ((probability,),), state = self._silero.run(None, given)
            level, bright, front = map(float, measured_db(window[None])[0])
            heard = detector.feed(
                Window(
                    end=end, probability=float(probability), level_db=level, bright_db=bright, front_db=front,
                    talking_over=False,
                )
            )  # fmt: skip
            state = state * np.float32(0.5) if detector.idle else state
            if heard is None:
                continue
            kind, since = heard
            if kind == "started" and begun is None:
                begun = since
            if kind == "lulled" and begun is not None:
                cpu = time.thread_time()
                judged = self._model(wide[max(0, round((begun - _LEAD_S) * 16000)) : round(end * 16000)])
                yield Heard(kind, end, since, judged, time.thread_time() - cpu)
            else:
                yield Heard(kind, end)


def over_at(clip: Clip, patience: Patience, vad_silence_s: float, *, model: bool) -> float:
    """When the first utterance of a clip ends."""
    due = float("inf")
    answer: float | None = None
    pending: Heard | None = None
    vad_ended_at: float | None = None
    since = 0.0
    for heard in (*clip.heard, Heard("end of file", float("inf"))):
        if pending is not None and (answered := pending.at + pending.cpu_s) <= heard.at:
            answer, pending = pending.probability, None
            if patience.is_finished(answer) or vad_ended_at is not None:
                due = max(answered, since + patience.silence_s(answer))
        if due <= heard.at:
            return due
        if heard.kind in ("resumed", "started"):
            due, answer, pending, vad_ended_at = float("inf"), None, None, None
        elif heard.kind == "lulled" and model:
            since = heard.since
            pending = heard
        elif heard.kind == "ended":
            vad_ended_at, since = heard.at, heard.at - vad_silence_s
            due = max(heard.at, since + patience.silence_s(answer))
    return due


def line(*pieces: Pcm) -> Pcm:
    """What arrives over a telephone line."""
    return to_float32(g711.decode_ulaw(g711.encode_ulaw(to_int16(np.clip(np.concatenate(pieces), -1, 1)))))


def sentence(path: Path) -> Pcm | None:
    """A clip from its first sound to its last, at the usual level. None: it is empty."""
    with wave.open(str(path)) as file:
        pcm = to_float32(np.frombuffer(file.readframes(file.getnframes()), "<i2"))
    level = np.array([float(np.sqrt(np.square(pcm[at : at + 80]).mean())) for at in range(0, len(pcm) - 80, 80)])
    if not len(level):
        return None
    loud = np.flatnonzero(level > max(level.max() * 10 ** (-FAINT_DB / 20), 1e-3)) * 80
    return levelled(pcm[loud[0] : loud[-1] + 80])


def word(path: Path) -> Pcm:
    """A volunteer's clip at the usual level."""
    pcm, rate = decode(path.read_bytes())
    resampler = Resampler(rate, SAMPLE_RATE)
    return levelled(np.concatenate((resampler.process(to_float32(pcm)), resampler.flush())))


def levelled(pcm: Pcm) -> Pcm:
    return (pcm * np.float32(10 ** ((SPEECH_DBOV - dbov(pcm)) / 20))).astype(np.float32)


def middle(pcm: Pcm) -> int:
    """The sample of the lowest level between 30 and 70 % of a sentence."""
    places = np.arange(len(pcm) * 3 // 10, len(pcm) * 7 // 10, 80)
    return int(places[np.argmin([np.square(pcm[at - 120 : at + 120]).sum() for at in places])])


def clips(folder: Path, ears: Ears, every: int) -> Iterator[Clip]:
    rng = np.random.default_rng(3)

    def noise(seconds: float) -> Pcm:
        return (rng.standard_normal(round(seconds * SAMPLE_RATE)) * 10 ** (NOISE_DBOV / 20)).astype(np.float32)

    for voice in sorted(folder.glob("usr/share/asterisk/sounds/*_*")):
        for name in SENTENCES[::every]:
            path = voice / f"{name}.wav"
            pcm = sentence(path) if path.exists() else None
            if pcm is None:
                continue
            ends = BEFORE_S + len(pcm) / SAMPLE_RATE
            sound = line(noise(BEFORE_S), pcm, noise(AFTER_S))
            yield Clip(voice.name[:2], name, "whole", ends, tuple(ears.hear(sound)))
            if len(pcm) < SAMPLE_RATE:
                continue  # a single word has no middle
            cut = middle(pcm)
            resumes = BEFORE_S + cut / SAMPLE_RATE + HESITATION_S
            sound = line(noise(BEFORE_S), pcm[:cut], noise(HESITATION_S), pcm[cut:], noise(AFTER_S))
            yield Clip(voice.name[:2], name, "hesitation", resumes, tuple(ears.hear(sound)))
    words = sorted(folder.glob("usr/share/ktuberling/sounds/??/*.*"))
    for path in [path for path in words if path.suffix in (".ogg", ".opus", ".wav")][::every]:
        sound = line(noise(BEFORE_S), word(path), noise(AFTER_S))
        ends, heard = ears.last_speech_s(sound), tuple(ears.hear(sound))
        if ends and heard:  # else there is no speech to Silero, or too little for an onset
            yield Clip(path.parent.name, path.stem, "word", ends, heard)


def judged(heard: list[Clip], patience: Patience, vad_silence_s: float, *, model: bool) -> dict[str, Any]:
    """Of each scene: the clips, which of them end prematurely, and the waits of the others."""
    result: dict[str, Any] = {}
    for scene in ("whole", "word", "hesitation"):
        over = {clip: over_at(clip, patience, vad_silence_s, model=model) for clip in heard if clip.scene == scene}
        if not over:
            continue
        # A sound is over a little before its last sample; what ends within 20 ms of it is no interruption.
        early = [clip for clip, at in over.items() if at < clip.ends - 0.02]
        result[scene] = {"clips": len(over), "premature": len(early)}
        if scene == "hesitation":
            continue
        result[scene]["early"] = [f"{clip.language}/{clip.name}" for clip in early]
        waits = [(at - clip.ends) * 1000 for clip, at in over.items() if clip not in early]
        p50, p90, p95 = np.percentile(waits, [50, 90, 95])
        result[scene]["wait_ms"] = {"p50": round(p50), "p90": round(p90), "p95": round(p95)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=model_file())
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--sweep", action="store_true", help="also other settings of recogniser.end_of_thought")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.model is None:
        parser.error("no turn model is installed: name its file with --model")
    heard = list(clips(arguments.speech, Ears(arguments.model), arguments.every))
    config = RecogniserConfig()
    thought = config.end_of_thought
    patience = Patience(
        usual_s=config.end_of_speech_ms / 1000,
        finished_s=thought.finished_ms / 1000,
        hesitating_s=thought.hesitating_ms / 1000,
    )
    vad_silence_s = MIN_SILENCE_S
    looks = [event for clip in heard for event in clip.heard if event.kind == "lulled"]
    by_language = defaultdict(list)
    for clip in heard:
        by_language[clip.language].append(clip)
    result: dict[str, Any] = {
        "commit": commit(),
        "machine": machine(),
        "without": judged(heard, patience, vad_silence_s, model=False),
        "with": judged(heard, patience, vad_silence_s, model=True),
        "by_language": {
            language: {
                which: judged(those, patience, vad_silence_s, model=which == "with") for which in ("without", "with")
            }
            for language, those in by_language.items()
        },
        "look_cpu_ms": round(1000 * float(np.median([look.cpu_s for look in looks])), 1),
        "looks_a_second": round(len(looks) / sum(clip.ends for clip in heard), 2),
    }
    if arguments.sweep:
        for finished_ms in (256, 288, 320, 400):
            for finished_from in (0.5, 0.7, 0.8, 0.9):
                other = replace(patience, finished_s=finished_ms / 1000, finished_from=finished_from)
                result[f"finished_ms {finished_ms}, finished_from {finished_from}"] = judged(
                    heard, other, vad_silence_s, model=True
                )
        for below, hesitating_ms in ((0.1, 1000), (0.3, 1000), (0.5, 1000)):
            other = replace(patience, hesitating_s=hesitating_ms / 1000, hesitating_below=below)
            result[f"hesitating_ms {hesitating_ms}, hesitating_below {below}"] = judged(
                heard, other, vad_silence_s, model=True
            )
    for name, value in result.items():
        print(name, json.dumps(value))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
