"""Cutting of the packages' sounds into clips, and their division between tuning and table.

A speaker, and with it each of its clips, belongs to one half. Settings are chosen on ``tuning``; ``table`` is only for
the published table. Clips are at 8 kHz, from their first sound to their last.
"""

from __future__ import annotations

import gzip
import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import av
import numpy as np

from benchmarks.people.rooms import RATE, Pcm, at_level, trimmed

HALVES = ("tuning", "table")

ASTERISK = "usr/share/asterisk/sounds"
CALLERS = {
    "tuning": ("it_IT_m_Carlo", "ru_RU_f_IvrvoiceRU", "es"),
    "table": ("en_US_f_Allison", "es_MX_f_Allison", "fr_CA_f_June", "it_IT_f_Menardi"),
}
"""Folders of ``ASTERISK``. One person speaks English and Mexican Spanish."""
LANGUAGES = {
    "en_US_f_Allison": "en-US",
    "es_MX_f_Allison": "es-MX",
    "es": "es-CO",
    "fr_CA_f_June": "fr-CA",
    "it_IT_f_Menardi": "it-IT",
    "it_IT_m_Carlo": "it-IT",
    "ru_RU_f_IvrvoiceRU": "ru-RU",
}
_WITHOUT_WORDS = ("es", "it_IT_f_Menardi")
"""Speakers whose words no package has."""
OTHERS = {"tuning": ("tux/fr", "tux/ro", "tux/es"), "table": ("tux/ru", "tux/bg", "tux/el", "tux/da")}
"""Volunteers, who speak phrases of a second or two."""
WORDS = {"tuning": ("ca", "fr", "lt", "ru"), "table": ("da", "de", "en", "gl", "nn", "uk")}
"""Languages of ktuberling's single words, a volunteer each."""
SHOUTS = {
    "tuning": ("British", "Pirate", "Default_ru", "Surfer"),
    "table": ("Default", "Default_es", "Default_pl", "Default_uk", "HillBilly", "Russian"),
}
"""Folders of Hedgewars' voices."""
MUSIC = {
    "tuning": ("macroform-cold_day", "reno_project-system"),
    "table": ("macroform-robot_dity", "macroform-the_simplicity", "manolo_camp-morning_coffee"),
}

SENTENCES = (
    *("agent-loggedoff", "agent-loginok", "agent-newlocation", "agent-pass", "auth-thankyou", "conf-full"),
    *("cannot-complete-as-dialed", "conf-getchannel", "conf-getconfno", "conf-getpin", "conf-kicked"),
    *("conf-leaderhasleft", "conf-lockednow", "conf-noempty", "conf-now-muted", "conf-now-recording", "conf-onlyone"),
    *("conf-onlyperson", "conf-placeintoconf", "conf-unlockednow", "conf-waitforleader", "confbridge-invalid"),
    *("confbridge-only-participant", "confbridge-pin", "confbridge-removed", "dir-nomatch", "dir-nomore"),
    *("enter-num-blacklist", "feature-not-avail-line", "number-not-answering", "agent-alreadyon", "agent-incorrect"),
    *("pbx-transfer", "please-try-again", "please-try-call-later", "pls-hold-while-try", "auth-incorrect"),
    *("privacy-thankyou", "queue-thankyou", "queue-youarenext", "simul-call-limit-reached", "vm-incorrect"),
    *("something-terribly-wrong", "sorry-youre-having-problems", "tt-somethingwrong", "vm-deleted", "vm-undeleted"),
    *("vm-enter-num-to-call", "vm-mailboxfull", "vm-nonumber", "vm-password", "vm-record-temp", "vm-review"),
    *("conf-invalid", "conf-invalidpin", "conf-locked", "conf-muted", "conf-unmuted", "demo-nogo", "vm-whichbox"),
)
"""Clips that are one sentence in English. Translations that are two are left out, where the words are known."""
SHORT = (
    *("hello", "goodbye", "one-moment-please", "im-sorry", "sorry", "vm-goodbye", "invalid", "cancelled", "activated"),
    *("calling", "number", "extension", "added", "removed", "minutes", "seconds", "enabled", "disabled", "location"),
    *("vm-and", "vm-from", "vm-INBOX", "vm-Old", "vm-Work", "vm-Family", "vm-Friends", "vm-first", "vm-last", "vm-for"),
)
"""Clips that are one or a few words."""
_NO_ANSWERS = ("vm-and", "vm-from", "vm-for")
FRAGMENTS = (
    *("at-tone-time-exactly", "conf-thereare", "conf-enteringno", "conf-banned", "if-correct-press", "dir-pls-enter"),
    *("num-was-successfully", "privacy-to-blacklist-last-caller", "queue-quantity1", "queue-thereare", "vm-duration"),
    *("vm-onefor-full", "vm-youhave", "vm-toreply", "vm-changeto", "vm-starmain", "vm-press", "queue-holdtime"),
    *("confbridge-dec-list-vol-in", "confbridge-dec-talk-vol-in", "confbridge-inc-list-vol-in", "confbridge-leave-in"),
    *("confbridge-inc-talk-vol-in", "confbridge-lock-in", "confbridge-menu-exit-in", "confbridge-mute-in"),
    *("confbridge-remove-last-in", "confbridge-rest-list-vol-in", "confbridge-rest-talk-vol-in"),
    *("confbridge-there-are", "confbridge-begin-leader", "the-party-you-are-calling", "vm-received", "vm-repeat"),
)
"""Beginnings of sentences, which were recorded to be continued with a number or a name."""
_PAUSE_S = 0.12
"""Silence within a recorded sentence that is a pause and no stop consonant, seconds."""
_NO_SPEECH = ("hm", "ow", "ooff", "jump", "laugh", "cough", "moan", "kiss", "firepunch", "whistle")


@dataclass(frozen=True, slots=True)
class Clip:
    """A sound from its first to its last audible sample, at ``RATE``."""

    pcm: Pcm
    text: str = ""
    """The words, by the name of the file; digits and letters as a recogniser writes them. Empty: no speech."""
    words: tuple[tuple[float, str], ...] = ()
    """Each word with the second at which it has been said. Empty: unknown."""


class Sounds:
    """The clips of one half.

    Args:
        folder: where ``packages.fetch`` has unpacked the packages.
        half: ``tuning`` or ``table``.
    """

    def __init__(self, folder: Path, half: str) -> None:
        self._folder, self._half = folder, half
        self.shouters = SHOUTS[half]
        self.callers = CALLERS[half]
        self.bots = CALLERS[half]
        self.others = OTHERS[half]

    @cache  # noqa: B019  # one object for each half, for as long as the process runs
    def clips(self, kind: str, speaker: str) -> tuple[Clip, ...]:
        """Return the clips of a kind.

        Args:
            kind: ``sentence``, ``word``, ``answer`` (a word that is one), ``interruption`` (both), ``number GAP``
                (phone numbers with pauses of GAP seconds), ``spelled``, ``divided_sentence`` (with a pause of the
                speaker at a comma); with a second of silence: ``hesitation`` (a sentence where it is faintest),
                ``comma`` (a divided sentence at its pause), ``fragment`` (a beginning, and then a number);
                ``volunteer``, ``shout``, ``music``, ``noise``, ``cough``.
            speaker: a caller, bot or other. Empty: all.
        """
        name, _, gap = kind.partition(" ")
        return tuple(clip for clip in getattr(self, f"_{name}")(speaker, gap) if len(clip.pcm) >= RATE // 20)

    # --- speakers ----------------------------------------------------------------------------------------------------

    def _sentence(self, speaker: str, gap: str) -> Iterator[Clip]:
        if speaker.startswith("tux/"):
            yield from self._phrases(speaker[4:])
        else:
            yield from (clip for clip in self._named(speaker, SENTENCES) if not re.search(r"[.!?]\s", clip.text))

    def _word(self, speaker: str, gap: str) -> Iterator[Clip]:
        yield from self._named(speaker, (*SHORT, *(f"digits/{n}" for n in range(21))))

    def _answer(self, speaker: str, gap: str) -> Iterator[Clip]:
        yield from self._named(
            speaker, (*(n for n in SHORT if n not in _NO_ANSWERS), *(f"digits/{n}" for n in range(21)))
        )

    def _interruption(self, speaker: str, gap: str) -> Iterator[Clip]:
        words, sentences = self.clips("word", speaker), self.clips("sentence", speaker)
        for word, sentence in zip(words, itertools.cycle(sentences), strict=False):
            yield word
            yield sentence

    def _named(self, speaker: str, names: tuple[str, ...]) -> Iterator[Clip]:
        for name in names:
            for suffix in ("wav", "gsm"):
                path = self._folder / ASTERISK / speaker / f"{name}.{suffix}"
                if path.exists():
                    yield Clip(read(path), self._texts(speaker).get(name, name.rpartition("/")[2].replace("-", " ")))
                    break

    @cache  # noqa: B019  # as above
    def _texts(self, speaker: str) -> dict[str, str]:
        """Return the words of a speaker's recordings by their names, as far as they are known."""
        if speaker in _WITHOUT_WORDS or speaker not in LANGUAGES:
            return {}
        language = LANGUAGES[speaker][:2]
        path = self._folder / f"usr/share/doc/asterisk-core-sounds-{language}/core-sounds-{language}.txt.gz"
        lines = gzip.open(path, "rt", encoding="utf-8-sig").read().splitlines()
        named = [line.partition(": ") for line in lines if ": " in line and not line.startswith(";")]
        return {name: text.strip() for name, _, text in named if "[" not in text and not re.search(r"\w\?\w|\?$", text)}

    def _phrases(self, language: str) -> Iterator[Clip]:
        paths = sorted(self._folder.glob(f"usr/share/tuxpaint/stamps/**/*_desc_{language}.ogg"))
        for path in random.Random(1).sample(paths, min(60, len(paths))):
            yield Clip(read(path), path.stem.partition("_desc")[0].replace("_", " "))

    def _volunteer(self, speaker: str, gap: str) -> Iterator[Clip]:
        for language in WORDS[self._half]:
            paths = sorted((self._folder / "usr/share/ktuberling/sounds" / language).glob("*.*"))
            for path in random.Random(2).sample(paths, min(15, len(paths))):
                yield Clip(read(path), path.stem.replace("_", " "))

    def _shout(self, speaker: str, gap: str) -> Iterator[Clip]:
        yield from self._voices(lambda name: not any(sound in name for sound in _NO_SPEECH))

    # --- composed answers --------------------------------------------------------------------------------------------

    def _number(self, speaker: str, gap: str) -> Iterator[Clip]:
        digits = [next(self._named(speaker, (f"digits/{n}",))) for n in range(10)]
        rng = random.Random(f"{speaker}{gap}")
        for _ in range(12):
            groups = rng.choice(((3, 3, 4), (3, 4), (2, 2, 2, 2), (4, 3, 3)))
            pieces: list[Pcm] = []
            said: list[tuple[float, str]] = []
            for group in groups:
                if pieces:
                    pieces.append(_silence(float(gap) * rng.uniform(0.95, 1.05)))
                for number in range(group):
                    digit = rng.randrange(10)
                    pieces += [_silence(0.04)] if number else []
                    pieces.append(digits[digit].pcm)
                    said.append((sum(map(len, pieces)) / RATE, str(digit)))
            yield Clip(np.concatenate(pieces), " ".join(word for _, word in said), tuple(said))

    def _spelled(self, speaker: str, gap: str) -> Iterator[Clip]:
        rng = random.Random(f"{speaker} spells")
        for name in ("miller", "tanaka", "garcia", "rossi", "dubois", "ivanov", "weber", "kowalski", "novak", "silva"):
            letters = list(self._named(speaker, tuple(f"letters/{letter}" for letter in name)))
            if len(letters) == len(name):
                pieces = [part for each in letters for part in (each.pcm, _silence(rng.uniform(0.15, 0.45)))]
                ends = itertools.accumulate(len(piece) / RATE for piece in pieces)
                words = tuple(zip(itertools.islice(ends, 0, None, 2), name.upper(), strict=True))
                yield Clip(np.concatenate(pieces[:-1]), " ".join(name.upper()), words)

    def _hesitation(self, speaker: str, gap: str) -> Iterator[Clip]:
        """Sentences with a second of silence where they are faintest in the middle."""
        for clip in self.clips("sentence", speaker):
            if len(clip.pcm) > RATE:
                places = np.arange(len(clip.pcm) * 3 // 10, len(clip.pcm) * 7 // 10, 80)
                at = int(places[np.argmin([np.square(clip.pcm[p - 120 : p + 120]).sum() for p in places])])
                length, words, said = len(clip.pcm) / RATE, clip.text.split(), 0
                times = []
                for word in words:
                    said += len(word) + 1
                    end = length * said / (len(clip.text) + 1)
                    times.append((end if end <= at / RATE else end + 1.0, word))
                yield Clip(np.concatenate((clip.pcm[:at], _silence(1.0), clip.pcm[at:])), clip.text, tuple(times))

    def _comma(self, speaker: str, gap: str) -> Iterator[Clip]:
        """Sentences that the speaker divided at a comma, with a second of silence there."""
        yield from (_joined(*parts, pause_s=1.0) for parts, _ in self._divided(speaker))

    def _divided_sentence(self, speaker: str, gap: str) -> Iterator[Clip]:
        """The same as they were spoken."""
        yield from (_joined(*parts, pause_s=pause_s) for parts, pause_s in self._divided(speaker))

    def _divided(self, speaker: str) -> Iterator[tuple[tuple[Pcm, str, Pcm, str], float]]:
        for name, text in self._texts(speaker).items():
            parts = [part.strip() for part in re.findall(r"[^,.!?;:…]+[,.!?;:…]*", text) if part.strip(" ,.!?;:…")]
            if len(parts) < 2 or not any(part.endswith(",") for part in parts[:-1]):
                continue
            for clip in self._named(speaker, (name,)):
                ends = _pauses(clip.pcm)
                if len(ends) != len(parts) - 1:
                    continue
                first = 0
                for at, (part, following) in enumerate(itertools.pairwise(parts)):
                    begins, ends_at = ends[at]
                    if not part.endswith(","):
                        first = at + 1
                        continue
                    start = ends[first - 1][1] if first else 0
                    stop = ends[at + 1][0] if at + 1 < len(ends) else len(clip.pcm)
                    before, after = clip.pcm[start:begins], clip.pcm[ends_at:stop]
                    pause_s = (ends_at - begins) / RATE
                    yield (before, " ".join(parts[first : at + 1]), after, following), pause_s

    def _fragment(self, speaker: str, gap: str) -> Iterator[Clip]:
        """Beginnings of sentences, a second of silence, and a number."""
        for number, clip in enumerate(self._named(speaker, FRAGMENTS)):
            digit = next(self._named(speaker, (f"digits/{number % 9 + 1}",)))
            yield _joined(clip.pcm, clip.text, digit.pcm, str(number % 9 + 1), pause_s=1.0)

    # --- other sounds ------------------------------------------------------------------------------------------------

    def _music(self, speaker: str, gap: str) -> Iterator[Clip]:
        for name in MUSIC[self._half]:
            yield Clip(read(self._folder / f"usr/share/asterisk/moh/{name}.wav")[: 180 * RATE])

    def _noise(self, speaker: str, gap: str) -> Iterator[Clip]:
        """Animals, vehicles, machines, steps, explosions: every second one belongs to a half."""
        stamps = self._folder.glob("usr/share/tuxpaint/stamps/**/*.ogg")
        paths = [path for path in stamps if "_desc" not in path.name and not {"symbols", "shapes"} & set(path.parts)]
        paths += (self._folder / "usr/share/games/hedgewars/Data/Sounds").glob("*.ogg")
        for path in sorted(paths)[HALVES.index(self._half) :: 2]:
            if not any(word in path.stem.lower() for word in (*_NO_SPEECH, "hog", "hell_", "yoohoo", "custom")):
                yield Clip(read(path)[: 10 * RATE])

    def _cough(self, speaker: str, gap: str) -> Iterator[Clip]:
        """Coughs and laughs."""
        yield from (Clip(clip.pcm) for clip in self._voices(lambda name: "cough" in name or "laugh" in name))

    def _voices(self, wanted) -> Iterator[Clip]:  # type: ignore[no-untyped-def]
        for voice in self.shouters:
            for path in sorted((self._folder / "usr/share/games/hedgewars/Data/Sounds/voices" / voice).glob("*.ogg")):
                if wanted(path.stem.lower()):
                    yield Clip(read(path), path.stem)


def _pauses(pcm: Pcm) -> list[tuple[int, int]]:
    """Return the first and the last sample of each pause."""
    pieces = len(pcm) // 80
    power = np.square(pcm[: pieces * 80].reshape(pieces, 80)).mean(axis=1)
    loud = np.flatnonzero(power > np.percentile(power, 95) * 10**-3)
    gaps = [(first + 1, last) for first, last in itertools.pairwise(loud) if last - first - 1 >= _PAUSE_S * 100]
    return [(int(first) * 80, int(last) * 80) for first, last in gaps]


def _joined(before: Pcm, said: str, after: Pcm, following: str, *, pause_s: float) -> Clip:
    """Return two parts of a sentence with silence between them."""
    pcm = np.concatenate((before, _silence(pause_s), after))
    begins = len(before) / RATE + pause_s
    words = [*_timed(said, 0.0, len(before) / RATE), *_timed(following, begins, len(after) / RATE)]
    return Clip(pcm, f"{said} {following}", tuple(words))


def _timed(text: str, begins: float, length_s: float) -> list[tuple[float, str]]:
    """Return each word with the second at which it has been said, in proportion to its letters."""
    ends = list(itertools.accumulate(len(word) + 1 for word in text.split()))
    return [(begins + length_s * end / ends[-1], word) for end, word in zip(ends, text.split(), strict=True)]


def _silence(seconds: float) -> Pcm:
    return np.zeros(round(seconds * RATE), np.float32)


@cache
def read(path: Path) -> Pcm:
    """Return a file's sound at ``RATE``, at -26 dBov, from its first sound to its last."""
    resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
    pieces: list[Pcm] = []
    with av.open(str(path), format="gsm" if path.suffix == ".gsm" else None, metadata_errors="replace") as file:
        for frame in itertools.chain(file.decode(audio=0), (None,)):
            pieces += [each.to_ndarray().reshape(-1).astype(np.float32) for each in resampler.resample(frame)]
    pcm = trimmed(np.concatenate(pieces)) if pieces else np.zeros(0, np.float32)
    return at_level(pcm, -26.0)
