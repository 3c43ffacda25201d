"""Bench of who has answered: ``python -m benchmarks.people.answers --half table``. See README.md here.

Greetings of the mailbox of Asterisk are whole and as deployed: the files that ``app_voicemail`` plays in turn. Hellos
are recorded, too. All other calls are composed of recorded speech, so what they show is believed: the words are seldom
those of a person who answers, and the pauses are drawn.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.people.beeps import line
from benchmarks.people.call import Call, LineSettings, Transcribe
from benchmarks.people.clips import ASTERISK, HALVES, Sounds, read
from benchmarks.people.figures import delays, share
from benchmarks.people.rooms import RATE, Pcm, at_level, in_room
from benchmarks.people.spoken_texts import spoken
from gateway.call.answering.phrases import said_by
from gateway.recognition.moonshine import Moonshine
from gateway.recognition.whisper import Whisper
from gateway.seams.messages import Answered, AnsweredBy
from tests.gateway.answering.line_sounds import silence, tone
from tests.virtual_loop import VirtualLoop
from voicecodecs.resample import Resampler

TEXTS = {
    "vm-theperson": "the person at extension",
    "vm-isunavail": "is unavailable",
    "vm-isonphone": "is on the phone",
    "vm-intro": "please leave your message after the tone when done hang up or press the pound key",
    "vm-nobodyavail": "nobody is available to take your call at the moment",
    "queue-thankyou": "thank you for your patience",
    "queue-youarenext": ("your call is now first in line and will be answered by the next available representative"),
    "queue-periodic-announce": (
        "all of our representatives are currently busy please stay on the line and your call will be answered by the "
        "next available representative"
    ),
    "dir-intro": (
        "welcome to the directory please enter the first three letters of your party's last name using your touch tone "
        "keypad"
    ),
    "priv-recordintro": "at the tone please say your name",
    "hello": "hello",
}
"""Words of the English sounds, by ``core-sounds-en.txt`` of Asterisk."""
ENGLISH = ("British", "Pirate", "Surfer", "Default", "HillBilly")
"""Voices of Hedgewars that speak English."""
LONGEST_S = 14.0
LONG_S = 2.5
"""Longest speech of a person who answers that the table does not list apart; a recording is decided after 3 s."""
HUMAN_S, RECORDING_S = 2.0, 4.0
"""Longest time to the right verdict: a person from the end of their words, a recording from its first sound."""


Told = tuple[float, AnsweredBy, float]
"""The second of a verdict, the verdict, and its confidence."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A call that is answered."""

    kind: str
    by: AnsweredBy
    parts: tuple[tuple[Pcm, str], ...]
    """Sounds in turn with their words; pauses have none."""
    first_s: float
    """Length of the first utterance, seconds."""
    language: str = ""
    """Its language, if a recogniser can be asked. Empty: several, or none."""


def scenes(sounds: Sounds, folder: Path, rng: np.random.Generator) -> Iterator[Scene]:
    """Make the calls of one half."""
    for speaker in sounds.callers:
        for scene in (*_people(sounds, folder, speaker, rng), *_recordings(sounds, folder, speaker, rng)):
            yield replace(scene, language=speaker[:2])
    for voice in sounds.shouters:
        for name in ("Hello", "Yessir"):
            path = folder / f"usr/share/games/hedgewars/Data/Sounds/voices/{voice}/{name}.ogg"
            if path.exists():
                language = "en" if voice in ENGLISH else ""
                yield replace(_person("recorded hello", ((read(path), ""),)), language=language)
    for clip in sounds.clips("volunteer", ""):
        yield _person("a word", ((clip.pcm, ""),))
    for speaker in sounds.others:
        for clip in sounds.clips("sentence", speaker)[:10]:
            yield _person("a phrase", ((clip.pcm, ""),))


def spoken_scenes(half: str, languages: Sequence[str], kinds: str, kokoro: Path | None) -> Iterator[Scene]:
    """Make calls of synthetic voices that say our texts, if a kind such as ``neural machine`` matches the pattern."""
    answers: tuple[AnsweredBy, ...] = ("human", "machine", "screening", "ivr")
    for language, by in itertools.product(languages, answers):
        if not any(fnmatch(f"{voice} {by}", kinds) for voice in ("neural", "espeak")):
            continue
        for voice, text, pcm in spoken(half, language, by, kokoro):
            beep = [(silence(0.8), ""), (tone(1000, seconds=0.4, dbov=-20.0), "")] if by == "machine" else []
            yield Scene(f"{voice} {by}", by, ((pcm, text), *beep), len(pcm) / RATE, language)


def _person(kind: str, parts: tuple[tuple[Pcm, str], ...]) -> Scene:
    seconds = sum(len(pcm) for pcm, _ in parts) / RATE
    return Scene(kind if seconds <= LONG_S else "more than 2.5 s", "human", parts, seconds)


def _people(sounds: Sounds, folder: Path, speaker: str, rng: np.random.Generator) -> Iterator[Scene]:
    for hello in _files(folder, speaker, "hello"):
        yield _person("recorded hello", (hello,))
    words = sounds.clips("word", speaker)
    for _ in range(10):
        first, second = (words[int(rng.integers(len(words)))].pcm for _ in range(2))
        yield _person("two words", ((first, ""), (silence(float(rng.uniform(0.1, 0.6))), ""), (second, "")))
    for clip in sounds.clips("sentence", speaker)[:10]:
        yield _person("a sentence", ((clip.pcm, ""),))
    again = [each for each in sounds.clips("sentence", speaker) if len(each.pcm) < 2 * RATE]
    for clip in again[-6:]:
        word = words[int(rng.integers(len(words)))].pcm
        parts = ((word, ""), (silence(float(rng.uniform(0.8, 1.6))), ""), (clip.pcm, ""))
        yield Scene("asks again", "human", parts, sum(len(pcm) for pcm, _ in parts) / RATE)


def _recordings(sounds: Sounds, folder: Path, speaker: str, rng: np.random.Generator) -> Iterator[Scene]:
    def drawn(low: float, high: float) -> tuple[Pcm, str]:
        return silence(float(rng.uniform(low, high))), ""

    def recording(kind: str, by: AnsweredBy, *parts: tuple[Pcm, str]) -> Scene:
        return Scene(kind, by, parts, sum(len(pcm) for pcm, _ in parts) / RATE)

    files = {name: found for name in TEXTS for found in _files(folder, speaker, name)}
    digits = [found for number in range(10) for found in _files(folder, speaker, f"digits/{number}")]
    beep = (tone(float(rng.choice((440, 1000, 1400))), seconds=0.4, dbov=-20.0), "")
    for state in ("vm-isunavail", "vm-isonphone"):
        for count in (3, 4):
            extension = [digits[int(rng.integers(len(digits)))] for _ in range(count)]
            yield recording(
                "mailbox of Asterisk",
                "machine",
                files["vm-theperson"],
                *extension,
                files[state],
                files["vm-intro"],
                beep,
            )
    yield recording("mailbox of Asterisk", "machine", files["vm-intro"], beep)
    yield recording("mailbox of Asterisk", "machine", files["vm-nobodyavail"], drawn(0.2, 0.6), files["vm-intro"], beep)
    sentences, words = sounds.clips("sentence", speaker), sounds.clips("word", speaker)
    for _ in range(12):
        first = words[int(rng.integers(len(words)))].pcm
        chosen = [sentences[int(rng.integers(len(sentences)))].pcm for _ in range(3)]
        parts = [(first, ""), drawn(0.1, 1.0)]
        for pcm in chosen:
            parts += [(pcm, ""), drawn(0.2, 0.8)]
        yield recording("composed greeting", "machine", *parts, beep)
    hold = (at_level(sounds.clips("music", "")[0].pcm[: 6 * RATE], -26.0), "")
    for name in ("queue-periodic-announce", "queue-youarenext", "queue-thankyou", "dir-intro"):
        if name in files:
            yield recording("queue or menu", "ivr", files[name], drawn(0.2, 0.5), hold)
    if "priv-recordintro" in files:
        yield recording("screening by Asterisk", "screening", files["priv-recordintro"], beep)


def _files(folder: Path, speaker: str, name: str) -> list[tuple[Pcm, str]]:
    words = TEXTS.get(name, name.rpartition("/")[2]) if speaker.startswith("en") else ""
    paths = [folder / ASTERISK / speaker / f"{name}.{suffix}" for suffix in ("wav", "gsm")]
    return [(read(path), words) for path in paths if path.exists()][:1]


def _text(whisper: Whisper, language: str, pcm: Pcm) -> str:
    return whisper(pcm, language, "").text


async def verdicts(
    scene: Scene, number: int, *, recogniser: bool | Transcribe, lost: float = 0.0, noise_dbov: float | None = None
) -> tuple[float, list[Told]]:
    """Play a call; return the begin of the sound, and each verdict.

    Args:
        lost: share of lost packets.
        noise_dbov: level of the line's noise. None: -70 to -50.
    """
    rng = np.random.default_rng(number)
    drawn_dbov = float(rng.uniform(-70, -50))
    line = LineSettings(noise_dbov=drawn_dbov if noise_dbov is None else noise_dbov, lost=lost)
    route = {"language": scene.language} if scene.language else {}
    call = Call(line, {}, route=route, recogniser=recogniser, seconds=LONGEST_S, seed=number, direction="outbound")
    at = begins = float(rng.uniform(0.2, 1.5))
    level_db, room = float(rng.normal(0.0, 3.0)), scene.by == "human" and rng.random() < 0.5
    for pcm, text in scene.parts:
        length_s = len(pcm) / RATE
        if at + length_s > LONGEST_S:
            break
        heard = in_room(pcm, float(rng.uniform(0.2, 0.5)), distance_m=0.3, seed=number) if room else pcm
        call.utter(heard * np.float32(10 ** (level_db / 20)), text, after_s=at)
        at += length_s
    await asyncio.sleep((begins + scene.first_s + HUMAN_S + 0.5 if scene.by == "human" else LONGEST_S) - call.now)
    await call.finish()
    return begins, [(at, message.by, message.confidence) for at, message in call.told if isinstance(message, Answered)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one call."""

    last: AnsweredBy | None
    """The last verdict in time. None: there was none."""
    right: bool
    right_at_last: bool
    doubted: bool
    """A person was first called a machine, with a confidence on which nothing is done."""
    delay_s: float | None
    """From the end of a person's words, or from the first sound of a recording, to the first verdict."""


def judged(scene: Scene, begins: float, found: list[Told], *, words: bool) -> Outcome:
    """Compare the verdicts of a call. Without words, a queue and an assistant are machines."""
    wanted = scene.by if words or scene.by == "human" else "machine"
    from_s, limit_s = (begins + scene.first_s, HUMAN_S) if scene.by == "human" else (begins, RECORDING_S)
    in_time = [by for at, by, _ in found if at <= from_s + limit_s]
    last = in_time[-1] if in_time else None
    delay_s = found[0][0] - from_s if found else None
    doubted = scene.by == "human" and any(by == "machine" for _, by, _ in found)
    return Outcome(last, last == wanted, bool(found) and found[-1][1] == wanted, doubted, delay_s)


def print_heard(calls: Iterable[Scene], transcribe: Callable[[Scene, Pcm], str], *, misses: bool) -> None:
    """Print whom the recogniser's words of each whole call name. A person is right unless they name another."""
    right: dict[str, list[bool]] = {}
    for number, scene in enumerate(calls):
        pcm = line(np.concatenate([pcm for pcm, _ in scene.parts]), np.random.default_rng(number), -60.0)
        text = transcribe(scene, Resampler(RATE, 2 * RATE).process(pcm))
        found = said_by(text, scene.language).by
        wanted: tuple[AnsweredBy | None, ...] = ("human", None) if scene.by == "human" else (scene.by,)
        right.setdefault(f"{scene.language} {scene.kind}", []).append(found in wanted)
        if misses and found not in wanted:
            print(f"    {scene.kind}: {found}, {text}", flush=True)
    for kind, each in right.items():
        print(f"| {kind} | {share(sum(each), len(each))} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sounds", type=Path, default=Path("build/people"), help="folder of the unpacked packages")
    parser.add_argument("--half", choices=HALVES, default="tuning")
    parser.add_argument("--words", choices=("ideal", "embedded"), help="English only, with this recogniser")
    parser.add_argument("--whisper", type=Path, metavar="FOLDER", help="with the words of this Whisper model")
    parser.add_argument("--languages", nargs="+", default=[], help="only these, with their recogniser")
    parser.add_argument("--kinds", default="*", metavar="PATTERN", help="only calls of these kinds")
    parser.add_argument("--heard", action="store_true", help="only judge the recogniser's words of whole calls")
    parser.add_argument("--synthetic", action="store_true", help="synthetic voices only")
    parser.add_argument(
        "--kokoro", type=Path, metavar="FOLDER", help="synthetic voices of these tables, not espeak-ng's"
    )
    parser.add_argument("--loss", type=float, default=0.0, metavar="SHARE", help="share of lost packets")
    parser.add_argument("--noise", type=float, metavar="DBOV", help="level of the line's noise; default -70 to -50")
    parser.add_argument("--misses", action="store_true", help="print each call that was not judged right in time")
    arguments = parser.parse_args()
    rng = np.random.default_rng(HALVES.index(arguments.half))
    recogniser: bool | Transcribe = Moonshine() if arguments.words == "embedded" else bool(arguments.words)
    whisper = None if arguments.whisper is None else Whisper(arguments.whisper)
    languages = ["en"] if arguments.words == "embedded" else arguments.languages
    if arguments.synthetic:
        calls = spoken_scenes(arguments.half, languages or ["en"], arguments.kinds, arguments.kokoro)
    else:
        calls = scenes(Sounds(arguments.sounds, arguments.half), arguments.sounds, rng)
    if arguments.heard:
        chosen = (
            each for each in calls if fnmatch(each.kind, arguments.kinds) and each.language in (languages or ["en"])
        )
        moonshine = Moonshine() if whisper is None else None

        def transcribe(scene: Scene, pcm: Pcm) -> str:
            if moonshine is not None:
                return moonshine(pcm)
            assert whisper is not None
            return _text(whisper, scene.language, pcm)

        print_heard(chosen, transcribe, misses=arguments.misses)
        return
    results: dict[str, list[Outcome]] = {}
    loop = VirtualLoop()
    begun = time.thread_time()
    for number, scene in enumerate(calls):
        if not fnmatch(scene.kind, arguments.kinds) or (languages and scene.language not in languages):
            continue
        if recogniser is True and not any(text for _, text in scene.parts):
            continue
        if whisper is not None:
            recogniser = partial(_text, whisper, scene.language)
        told = verdicts(scene, number, recogniser=recogniser, lost=arguments.loss, noise_dbov=arguments.noise)
        begins, found = loop.run_until_complete(told)
        outcome = judged(scene, begins, found, words=bool(recogniser))
        results.setdefault(scene.kind, []).append(outcome)
        if arguments.misses and not outcome.right:
            said = " ".join(text for _, text in scene.parts)
            print(f"    {scene.kind} {number}: {scene.first_s:.2f} s from {begins:.2f} s, {found} {said}", flush=True)
    print("| call | right in time | another verdict | none in time | doubted before | right at last | first verdict |")
    for kind, outcomes in results.items():
        late = [each for each in outcomes if each.last is None]
        print(
            f"| {kind} | {share(sum(each.right for each in outcomes), len(outcomes))} "
            f"| {sum(not each.right for each in outcomes) - len(late)} | {len(late)} "
            f"| {sum(each.doubted for each in outcomes)} "
            f"| {sum(each.right_at_last for each in outcomes)} "
            f"| {delays([each.delay_s for each in outcomes if each.delay_s is not None])} |"
        )
    print(f"{sum(map(len, results.values()))} calls in {(time.thread_time() - begun) / 60:.1f} min of processor time")


if __name__ == "__main__":
    main()
