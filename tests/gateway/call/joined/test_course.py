"""The course of a bridge: each way through it, and random interleavings of everything that may happen."""

import asyncio
import random
from collections import Counter

import pytest

from gateway.call.joined.course import ENDINGS, BridgeAct, Course, Step, begins_with
from gateway.seams.messages import Transfer, Warm

WARM = Warm(briefing="A caller.", accept=("1", "yes"), decline=("2", "no"))


def course(*, warm: Warm | None = WARM, ring: float | None = 20.0, accept: float | None = 10.0) -> Course:
    made = Course(
        Transfer(target="sip:a@b", warm=warm, ring_timeout_s=ring, accept_timeout_s=accept),
        longest_s=3600.0,
    )
    made.placed(0.0)
    return made


def briefing() -> Course:
    made = course()
    made.ringing()
    made.answered(5.0)
    assert made.began(5.1) == Step("answered", (BridgeAct.BRIEF,))
    return made


@pytest.mark.parametrize("key", ["1", "2", "3"])
def test_a_key_accepts_or_declines(key: str) -> None:
    made = briefing()
    expected = {
        "1": Step("accepted", (BridgeAct.JOIN,)),
        "2": Step("declined", (BridgeAct.RELEASE, BridgeAct.FAIL)),
        "3": Step(),
    }
    assert made.pressed(key, 6.0) == expected[key]
    assert made.stage == {"1": "joined", "2": "over", "3": "briefing"}[key]


@pytest.mark.parametrize(
    ("words", "phrases", "begins"),
    [
        ("Yes, please.", ("yes",), True),
        ("yes", ("yes",), True),
        ("Yesterday I was out.", ("yes",), False),
        ("I can't say yes now", ("yes",), False),
        ("¡Sí, claro!", ("sí",), True),
        ("put her through, thanks", ("no", "put her through"), True),
        ("好的，接进来", ("好的",), True),
        ("", ("yes",), False),
        ("yes", (" ",), False),
    ],
)
def test_an_answer_begins_with_a_phrase(words: str, phrases: tuple[str, ...], begins: bool) -> None:
    assert begins_with(words, phrases) is begins


def test_the_time_for_the_decision_begins_after_the_briefing() -> None:
    made = briefing()
    made.briefed(40.0)
    made.briefed(45.0)
    assert made.deadline == 50.0
    assert made.expire(49.9) == Step()
    assert made.expire(50.0) == Step("noAnswer", (BridgeAct.RELEASE, BridgeAct.FAIL))


def test_a_phone_that_rings_too_long_is_given_up_and_a_late_answer_changes_nothing() -> None:
    made = course()
    assert made.expire(20.0) == Step("noAnswer", (BridgeAct.CANCEL, BridgeAct.FAIL))
    assert made.answered(20.1) == made.began(20.1) == Step()


def test_without_warm_the_answer_joins() -> None:
    made = course(warm=None)
    made.began(1.0)
    assert made.answered(2.0) == Step("answered", (BridgeAct.JOIN,))
    assert made.hung_up() == Step("hangup", (BridgeAct.FINISH,))


def test_an_answer_without_a_session_fails_in_time() -> None:
    made = course()
    made.answered(5.0)
    assert made.deadline is not None
    assert made.expire(made.deadline) == Step("failed", (BridgeAct.FAIL,))


@pytest.mark.parametrize("stage", ["calling", "briefing", "joined"])
def test_the_application_may_take_the_person_off_at_any_time(stage: str) -> None:
    made = course() if stage == "calling" else briefing()
    if stage == "joined":
        made.pressed("1", 6.0)
    assert made.taken_off() == Step(
        "hangup", (BridgeAct.CANCEL if stage == "calling" else BridgeAct.RELEASE, BridgeAct.RETURN)
    )


class Checked:
    """A course in the hands of a bridge that keeps books."""

    def __init__(self, dice: random.Random) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time
        self.warm = dice.random() < 0.8
        self.course = Course(
            Transfer(
                target="sip:a@b",
                warm=WARM if self.warm else None,
                ring_timeout_s=dice.choice((1.0, 5.0)),
                accept_timeout_s=dice.choice((None, 1.0, 3.0)),
            ),
            longest_s=dice.choice((2.0, 50.0)),
        )
        self.told: list[str] = []
        self.acts: list[BridgeAct] = []
        self.answered = self.leg = self.consent = False
        self.course.placed(self.now())
        self.timer = loop.create_task(self._expire())

    async def _expire(self) -> None:
        while self.course.stage != "over":
            await asyncio.sleep(0.25)
            self.take(self.course.expire(self.now()))

    def take(self, step: Step) -> None:
        was_over = any(act in ENDINGS for act in self.acts)
        assert not (was_over and (step.tell or step.acts)), "something happened after the end"
        if step.tell is not None:
            self.told.append(step.tell)
        self.acts += step.acts
        if BridgeAct.JOIN in step.acts:
            assert self.answered and self.leg
            assert self.consent or not self.warm, "the caller was joined with a person who had not accepted"
        if BridgeAct.BRIEF in step.acts:
            assert self.answered and self.leg and self.warm
        ended = [act for act in step.acts if act in ENDINGS]
        assert len(ended) <= 1
        if ended:
            assert step.acts[-1] is ended[0] and self.course.stage == "over" and self.course.deadline is None
            if self.answered and self.leg:
                assert BridgeAct.RELEASE in step.acts, "the person's leg was left alone"
            if not self.answered and step.tell not in ("failed", "busy", "declined"):
                assert BridgeAct.CANCEL in step.acts, "the attempt was left alone"

    def happens(self, what: str) -> None:
        course, now = self.course, self.now()
        match what:
            case "ringing":
                self.take(course.ringing())
            case "answered":
                self.answered = True
                self.take(course.answered(now))
            case "began":
                self.leg = True
                self.take(course.began(now))
            case "lost":
                self.leg = False
                self.take(course.hung_up())
            case "briefed":
                self.take(course.briefed(now))
            case "1" | "2" | "9":
                self.consent |= what == "1" and course.stage == "briefing"
                self.take(course.pressed(what, now))
            case "yes" | "no" | "hello":
                self.consent |= what == "yes" and course.stage == "briefing"
                self.take(course.said(what, now))
            case "busy" | "failed" | "declined":
                if not self.answered:
                    self.take(course.failed(what))  # type: ignore[arg-type]
            case "leave":
                self.take(course.taken_off())
            case "gone":
                self.take(course.caller_gone())


_COMMON = "ringing answered began briefed 1 yes hello 9".split()
_RARE = "lost 2 no busy failed declined leave gone".split()


@pytest.mark.virtual_time
async def test_random_interleavings_end_well() -> None:
    """10,000 courses. Each one ends once, by itself if nothing happens any more, and leaves no leg behind."""
    dice = random.Random(59)
    outcomes: Counter[str] = Counter()
    for _ in range(10_000):
        made = Checked(dice)
        for _ in range(dice.randrange(12)):
            made.happens(dice.choice(_COMMON if dice.random() < 0.8 else _RARE))
            if dice.random() < 0.3:
                await asyncio.sleep(dice.choice((0.1, 1.0, 4.0)))
        await made.timer
        assert made.acts[-1] in ENDINGS
        assert made.told.count("answered") <= 1 and made.told.count("accepted") <= 1
        assert made.acts.count(BridgeAct.JOIN) <= 1
        outcomes[f"{made.acts[-1].name} {made.told[-1] if made.told else ''}"] += 1
    expected = {
        *(f"FAIL {event}" for event in "busy failed declined noAnswer hangup".split()),
        *("RETURN hangup", "FINISH hangup", "TOO_LONG accepted", "TOO_LONG answered", "GONE accepted"),
    }
    assert expected <= set(outcomes), outcomes
