"""The scenes: what surrounds the caller, what the caller says, and what is counted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np

from benchmarks.people.call import FRAME_S, Call, LineSettings, Said, Transcribe
from benchmarks.people.clips import LANGUAGES, Clip, Sounds
from benchmarks.people.rooms import RATE, Pcm, at_level, impulse_response, in_room, telephone_band
from gateway.recognition.turn_model import Judge
from gateway.seams.messages import ExpectedReply, Outbound, Prompt, TurnEvent

CALLER_DBOV = -26.0
BOT_DBOV = -24.0
_GRACE_S = 1.5  # a cut this long after the caller's last sound is still the caller's
_ANSWER_WAIT_S = 5.0
_THINKS_S = 0.5  # the manager, before it speaks
_GAPS_S = (0.3, 0.5, 0.7, 0.9)


@dataclass
class Tally:
    """The counts of a scene."""

    minutes: float = 0.0
    spoken_min: float = 0.0
    false_cuts: int = 0
    pauses: int = 0
    """Sounds that made the bot pause and were no interruption."""
    interruptions: int = 0
    missed: list[str] = field(default_factory=list)
    onset_to_silence_s: list[float] = field(default_factory=list)
    false_prompts: int = 0
    answers: int = 0
    premature: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    answer_delay_s: list[float] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A kind of call."""

    name: str
    calls: int = 4
    seconds: float = 60.0
    line: Callable[[random.Random], LineSettings] = lambda rng: LineSettings()
    around: Callable[[Sounds, random.Random, float, float, str], Iterator[Said]] | None = None
    """Sounds around the telephone: (sounds, rng, seconds, the caller's level in dBov, the caller's speaker)."""
    interrupts: str = ""
    """Kind of what the caller says over the bot; empty: nothing."""
    answers: str = "sentence"
    """Kind of the caller's answers; empty: the caller never speaks."""
    route: dict[str, object] = field(default_factory=dict)
    recogniser: bool = True
    expects: bool = False
    """The manager says how many digits the answer has."""
    monologues: bool = True
    """The bot speaks at length between its questions."""


class Conversation:
    """The manager's and the caller's part: questions with answers, and monologues that may be interrupted."""

    def __init__(self, scene: Scene, call: Call, sounds: Sounds, caller: str, dbov: float, rng: random.Random) -> None:
        self.scene, self.call, self.sounds, self.caller = scene, call, sounds, caller
        self.dbov, self.rng = dbov, rng
        self.tally = Tally()
        self._turns = 0
        self._ended: dict[str, tuple[float, str]] = {}
        """Time and reason of each turn's end, by turn. An empty reason: it was heard to its end."""
        self._prompts: list[tuple[float, str]] = []
        self._clips: dict[str, list[Clip]] = {}
        call.on_told = self._on_told

    def _on_told(self, message: Outbound) -> None:
        match message:
            case TurnEvent(event="finished"):
                self._ended[message.turn] = (self.call.now, "")
            case TurnEvent(event="interrupted"):
                self._ended[message.turn] = (self.call.now, str(message.data.get("reason")))
            case Prompt(last=True):
                self._prompts.append((self.call.now, message.voice_prompt))

    async def run(self) -> Tally:
        call, tally = self.call, self.tally
        while call.now < self.scene.seconds:
            if self.scene.answers:
                await self._question()
            if self.scene.monologues:
                await self._monologue()
        await asyncio.sleep(1.0)
        tally.minutes = call.now / 60
        tally.pauses = call.clears - sum(reason == "speech" for _, reason in self._ended.values())
        tally.spoken_min = len(call.sent_at) * FRAME_S / 60
        tally.false_prompts = sum(not own for begun, over, own, text in call.recogniser.utterances if text)
        return tally

    # --- the bot -----------------------------------------------------------------------------------------------------

    def _speak(self, kind: str, expect: ExpectedReply | None = None) -> str:
        self._turns += 1
        name = f"b{self._turns}"
        text = self.rng.choice([text for text in self.call.voice if text.startswith(kind)])
        self.call.speak(text, name, expect)
        return name

    async def _question(self) -> None:
        clip = self._next(self.scene.answers)
        expect = ExpectedReply(kind="digits", digits=len(clip.words)) if self.scene.expects else None
        for _ in range(3):
            turn = self._speak("Question", expect)
            if await self._until(partial(self._ended.__contains__, turn), 20.0) and not self._was_cut(turn, None):
                break
            await asyncio.sleep(_THINKS_S)
        await self._answer(clip)
        await asyncio.sleep(_THINKS_S)

    async def _monologue(self) -> None:
        turn = self._speak("Long")
        said: Said | None = None
        begun = self.call.now
        if self.scene.interrupts:
            await self._until(lambda: turn in self._ended, self.rng.uniform(1.5, 6.0))
            if turn not in self._ended:
                said = self._utter(self._next(self.scene.interrupts))
        await self._until(lambda: turn in self._ended, 40.0)
        self._was_cut(turn, said)
        if said is not None:
            await self._judge_interruption(turn, said)
        elif self._ended.get(turn, (0.0, ""))[1] and self.call.now - begun < 1.0:
            await asyncio.sleep(1.0)
        await asyncio.sleep(_THINKS_S)

    def _was_cut(self, turn: str, said: Said | None) -> bool:
        """Count a cut without a word of the caller. Return True if the turn was cut."""
        at, reason = self._ended.get(turn, (0.0, ""))
        if reason == "speech" and not (said is not None and said.at <= at <= said.end + _GRACE_S):
            self.tally.false_cuts += 1
        return bool(reason)

    async def _judge_interruption(self, turn: str, said: Said) -> None:
        tally = self.tally
        at, reason = self._ended.get(turn, (0.0, ""))
        if reason and at < said.at:
            return
        tally.interruptions += 1
        if reason == "speech" and at <= said.end + _GRACE_S:
            before = [sent for sent in self.call.sent_at if sent <= at]
            tally.onset_to_silence_s.append(max(0.0, before[-1] + FRAME_S - said.at))
        else:
            tally.missed.append(f"{said.text} ({len(said.pcm) / RATE:.2f} s)")
        await self._until(lambda: self._prompted(said.end - 0.1), said.end + 2.5 - self.call.now)

    # --- the caller --------------------------------------------------------------------------------------------------

    def _next(self, kind: str) -> Clip:
        if not self._clips.get(kind):
            clips = list(self.sounds.clips(kind, "" if kind in ("volunteer", "shout") else self.caller))
            clips = clips or [clip for each in self.sounds.callers for clip in self.sounds.clips(kind, each)]
            self.rng.shuffle(clips)
            self._clips[kind] = clips
        return self._clips[kind].pop()

    def _utter(self, clip: Clip) -> Said:
        pcm = at_level(clip.pcm, self.dbov + self.rng.gauss(0.0, 1.5))
        return self.call.utter(pcm, clip.text, words=clip.words)

    async def _answer(self, clip: Clip) -> None:
        tally = self.tally
        await asyncio.sleep(self.rng.uniform(0.3, 1.0))
        said = self._utter(clip)
        # Words that were said while another voice had the floor may be in a prompt that ends early: that is counted.
        await self._until(lambda: self._prompted(said.end - 0.02), said.end + _ANSWER_WAIT_S - self.call.now)
        tally.answers += 1
        early = [text for at, text in self._prompts if said.at + 0.1 < at < said.end - 0.02]
        late = [at for at, _ in self._prompts if at >= said.end - 0.02]
        if early:
            tally.premature.append(said.text)
        elif late:
            tally.answer_delay_s.append(late[0] - said.end)
        else:
            tally.unanswered.append(said.text)

    def _prompted(self, since: float) -> bool:
        return bool(self._prompts) and self._prompts[-1][0] >= since

    async def _until(self, happened: Callable[[], bool], seconds: float) -> bool:
        until = self.call.now + seconds
        while not happened() and self.call.now < until:
            await asyncio.sleep(FRAME_S)
        return happened()


async def played(
    scene: Scene,
    sounds: Sounds,
    number: int,
    turn_model: Judge | None,
    transcribe: Transcribe | None = None,
    *,
    reduced: bool | None = None,
) -> Tally:
    """Play one call of a scene. ``transcribe``: a recogniser of English, which all callers speak then. ``reduced``: the
    route's ``background_noise_reduction``."""
    rng = random.Random(f"{scene.name}/{number}")
    speakers = [
        each
        for each in sorted(sounds.callers)
        if (not scene.answers or sounds.clips(scene.answers, each))
        and (transcribe is None or LANGUAGES[each].startswith("en"))
    ]
    caller = speakers[number % len(speakers)]
    dbov = CALLER_DBOV + rng.gauss(0.0, 3.0)
    call = Call(
        scene.line(rng),
        bot_voice(sounds, rng, caller),
        turn_model=turn_model,
        route={"language": LANGUAGES[caller], "background_noise_reduction": reduced, **scene.route},
        recogniser=transcribe or True if scene.recogniser else False,
        seconds=scene.seconds + 90.0,
        seed=number,
    )
    if scene.around is not None:
        for said in scene.around(sounds, rng, scene.seconds + 90.0, dbov, caller):
            call.said.append(said)
            call.sound(said.pcm, said.at)
    try:
        return await Conversation(scene, call, sounds, caller, dbov, rng).run()
    finally:
        await call.finish()


def bot_voice(sounds: Sounds, rng: random.Random, caller: str) -> dict[str, Pcm]:
    """Return what the bot can say, in the voice of another speaker."""
    speaker = rng.choice([each for each in sounds.bots if each != caller])
    clips = list(sounds.clips("sentence", speaker))
    voice: dict[str, Pcm] = {}
    for number in range(6):
        parts: list[Pcm] = []
        while sum(map(len, parts)) < 14 * RATE:
            parts += [rng.choice(clips).pcm, np.zeros(round(rng.uniform(0.15, 0.4) * RATE), np.float32)]
        voice[f"Long {number} " + " ".join(["words"] * 30) + "."] = at_level(np.concatenate(parts), BOT_DBOV)
        voice[f"Question {number}, please?"] = at_level(rng.choice(clips).pcm, BOT_DBOV)
    return voice


# --- what surrounds the caller --------------------------------------------------------------------------------------


@cache
def _room(t60_s: float, seed: int) -> Pcm:
    return impulse_response(t60_s, distance_m=0.6, seed=seed)


def speakerphone(t60_s: float, loss_db: float, rng: random.Random) -> LineSettings:
    """Return a line to a telephone that returns the bot's voice from a room, ``loss_db`` lower."""
    response = _room(t60_s, rng.randrange(4)) * np.float32(10 ** (-loss_db / 20))
    return LineSettings(echo=response, delay_s=rng.choice((0.05, 0.12, 0.25, 0.4, 0.5)), clipping=2.0)


def one_copy(loss_db: float, rng: random.Random) -> LineSettings:
    """Return a line whose hybrid returns the bot's voice."""
    return LineSettings(
        echo=np.array([10 ** (-loss_db / 20)], np.float32), delay_s=rng.choice((0.05, 0.12, 0.25, 0.4, 0.5))
    )


def room_of(
    speakers: int,
    below_db: float,
    pause_s: float,
    sounds: Sounds,
    rng: random.Random,
    seconds: float,
    dbov: float,
    caller: str,
) -> Iterator[Said]:
    """Other people in the room, ``below_db`` below the caller, each with pauses of about ``pause_s``."""
    others = [each for each in sounds.others if each != caller]
    for number in range(speakers):
        clips = list(sounds.clips("sentence", others[(rng.randrange(len(others)) + number) % len(others)]))
        at = rng.uniform(0.0, 2.0)
        while at < seconds:
            clip = rng.choice(clips)
            pcm = in_room(clip.pcm, 0.4, distance_m=1.5, seed=rng.randrange(4))
            yield Said(at, at_level(telephone_band(pcm), dbov - below_db), clip.text, by_caller=False)
            at += len(clip.pcm) / RATE + rng.uniform(0.3, 1.7) * pause_s


def television(sounds: Sounds, rng: random.Random, seconds: float, dbov: float, caller: str) -> Iterator[Said]:
    """Speech without much pause, over music."""
    yield from room_of(1, 15.0, 0.3, sounds, rng, seconds, dbov, caller)
    yield from clips_of("music", 22.0, 0.0, sounds, rng, seconds, dbov, caller)


def clips_of(
    kind: str,
    below_db: float,
    pause_s: float,
    sounds: Sounds,
    rng: random.Random,
    seconds: float,
    dbov: float,
    caller: str,
) -> Iterator[Said]:
    """Music or noises one after the other."""
    clips = list(sounds.clips(kind, ""))
    at = 0.5
    while at < seconds:
        clip = rng.choice(clips)
        pcm = clip.pcm[: round((seconds - at) * RATE)]
        if len(pcm) < RATE // 20:
            break
        yield Said(at, at_level(telephone_band(pcm), dbov - below_db), "", by_caller=False)
        at += len(pcm) / RATE + rng.uniform(0.5, 1.5) * pause_s


def scenes() -> list[Scene]:
    """All scenes of the table."""
    phones = [
        Scene(
            name=f"speakerphone T60 {t60_s} s, -{loss_db:.0f} dB",
            calls=3,
            line=partial(speakerphone, t60_s, loss_db),
        )
        for t60_s in (0.1, 0.3, 0.5)
        for loss_db in (10.0, 15.0, 25.0)
    ]
    return [
        Scene(name="sentences over the bot", calls=8, interrupts="sentence"),
        Scene(name="words over the bot", calls=8, interrupts="word"),
        Scene(name="volunteers' words over the bot", calls=4, interrupts="volunteer"),
        Scene(name="shouts over the bot", calls=4, interrupts="shout"),
        *phones,
        Scene(
            name="speakerphone, interrupted", calls=6, line=partial(speakerphone, 0.3, 15.0), interrupts="interruption"
        ),
        Scene(name="echo of one copy, -20 dB", calls=3, line=partial(one_copy, 20.0)),
        Scene(name="another voice 15 dB below", calls=8, around=partial(room_of, 1, 15.0, 1.0)),
        Scene(name="another voice 6 dB below", calls=8, around=partial(room_of, 1, 6.0, 1.0)),
        Scene(name="television 15 dB below", calls=8, around=television),
        Scene(name="office, 3 voices 15 dB below", calls=8, around=partial(room_of, 3, 15.0, 4.0)),
        Scene(name="babble, 6 voices 20 dB below", calls=4, around=partial(room_of, 6, 20.0, 0.3)),
        Scene(
            name="another voice, interrupted",
            calls=8,
            around=partial(room_of, 1, 15.0, 1.0),
            interrupts="interruption",
        ),
        Scene(name="hold music", calls=4, around=partial(clips_of, "music", 4.0, 0.0), answers=""),
        Scene(name="coughs and laughs", calls=4, around=partial(clips_of, "cough", 2.0, 3.0), answers=""),
        Scene(
            name="coughs and laughs, no recogniser",
            calls=4,
            around=partial(clips_of, "cough", 2.0, 3.0),
            answers="",
            recogniser=False,
        ),
        Scene(name="noises", calls=4, around=partial(clips_of, "noise", 2.0, 1.0), answers=""),
        *_answers(),
    ]


def _answers() -> Iterator[Scene]:
    """Questions and answers alone."""
    answered = partial(Scene, monologues=False)
    yield answered(name="sentences", calls=10, answers="sentence")
    for gap in _GAPS_S:
        yield answered(name=f"phone numbers, gaps {gap} s", calls=5, answers=f"number {gap}")
        yield answered(name=f"phone numbers, gaps {gap} s, expected", calls=5, answers=f"number {gap}", expects=True)
    yield answered(name="spelled names", calls=5, answers="spelled")
    yield answered(name="hesitations of 1 s", calls=8, answers="hesitation")
    yield answered(name="hesitations of 1 s at commas", calls=8, answers="comma")
    yield answered(name="sentences with pauses at commas", calls=8, answers="divided_sentence")
    yield answered(name="hesitations of 1 s, beginnings", calls=8, answers="fragment")
    yield answered(name="short answers", calls=6, answers="answer")
