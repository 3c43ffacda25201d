"""Scripted and random calls. Each gives the lines that ``VirtualSession`` notes; ``tests/vectors/calls`` keeps a table
of them for reviewers, and digests.

    python -m tests.gateway.call.interleavings check          compare all of them
    python -m tests.gateway.call.interleavings show 4711      every line of a random call, or of a script by its name
    python -m tests.gateway.call.interleavings record         write the vectors anew, after an intended change
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from gateway.seams.end_cause import EndCause
from gateway.seams.leg import TransferStart
from gateway.seams.messages import (
    Cancel,
    Commit,
    Discard,
    End,
    Inbound,
    Language,
    Mark,
    Play,
    SendDigits,
    Text,
    Transfer,
)
from tests.gateway.call.virtual_session import VirtualSession
from tests.virtual_loop import VirtualLoop

T = TypeVar("T")

VECTORS = Path(__file__).parents[2] / "vectors/calls"
RANDOM, BLOCK = 11_000, 25
DEPARTING = 10_000
"""Seed of the first random call whose manager has extensions, and may end or transfer it. Calls from here on also note
who ended them."""
LONG = "one two three four five six seven eight nine ten."

POLICIES: dict[str, dict[str, Any]] = {
    "onset": {"route": {}},
    "onset without pause": {"route": {}, "barge_in": {"pause_ms": 0}},
    "duration": {"route": {}, "barge_in": {"false_alarm_ms": 400}},
    "onset and words": {"route": {}, "recogniser": True},
    "duration or words": {"route": {}, "recogniser": True, "barge_in": {"false_alarm_ms": 400}},
    "words": {"route": {"ignore_backchannel": True}, "recogniser": True},
    "words with a pause": {
        "route": {"ignore_backchannel": True}, "recogniser": True, "barge_in": {"false_alarm_ms": 400}
    },
    "words, partial prompts": {"route": {"ignore_backchannel": True, "partial_prompts": True}, "recogniser": True},
    "by speech only": {"route": {"interruptible": "speech"}},
    "by digits only": {"route": {"interruptible": "dtmf"}, "recogniser": True},
    "by nothing": {"route": {"interruptible": "none", "report_input_during_agent_speech": "any"}, "recogniser": True},
    "everything told": {"route": {"events": ["speaker-events", "tokens-played"]}, "recogniser": True},
    "with extensions": {"route": {}, "dialogue": {"extensions": True}},
}  # fmt: skip


async def onset(call: VirtualSession) -> None:
    call.utters("word", 20)
    await call.run(2.5)


async def hum(call: VirtualSession) -> None:
    call.utters("hum", 12)
    await call.run(2.0)


async def vowel_that_ends(call: VirtualSession) -> None:
    call.utters("vowel", 3)
    await call.run(2.5)


async def vowel_that_becomes_a_word(call: VirtualSession) -> None:
    call.utters("vowel", 3)
    call.utters("word", 10)
    await call.run(2.5)


async def long_hum(call: VirtualSession) -> None:
    call.utters("hum", 40)
    await call.run(2.0)


async def short_word(call: VirtualSession) -> None:
    call.utters("word", 4)
    await call.run(2.5)


async def breath(call: VirtualSession) -> None:
    call.utters("word", 10)
    call.utters("silence", 13)
    call.utters("word", 10)
    await call.run(2.5)


async def digit(call: VirtualSession) -> None:
    call.session.on_digit("5")
    await call.run(0.5)


async def digit_in_doubt(call: VirtualSession) -> None:
    call.utters("vowel", 3)
    await call.run(0.15)
    call.session.on_digit("5")
    call.say(Text(token="an answer ", last=True))
    await call.run(2.0)


async def cancel(call: VirtualSession) -> None:
    call.say(Cancel())
    await call.run(0.5)


async def cancel_in_doubt(call: VirtualSession) -> None:
    call.utters("vowel", 3)
    await call.run(0.15)
    call.say(Cancel(turn="t1"), Text(token="an answer ", last=True))
    await call.run(2.0)


async def speaks_on_over_the_next_turn(call: VirtualSession) -> None:
    call.utters("word", 60)
    await call.run(0.5)
    call.say(Text(token="an answer that is long ", last=True, turn="a"))
    await call.run(3.0)


async def tail_after_a_cut(call: VirtualSession) -> None:
    call.say(Text(token="eleven "))
    call.utters("word", 10)
    for token in ("twelve ", "thirteen ", "fourteen "):
        await call.run(0.2)
        call.say(Text(token=token))
    call.say(Text(token="fifteen", last=True), Text(token="the answer", last=True))
    await call.run(3.0)


async def tail_after_a_digit(call: VirtualSession) -> None:
    call.say(Text(token="eleven "))
    call.session.on_digit("1")
    for token in ("twelve ", "thirteen ", "fourteen "):
        await call.run(0.2)
        call.say(Text(token=token))
    await call.run(2.0)


async def marks(call: VirtualSession) -> None:
    call.say(Mark(name="behind"))
    call.utters("vowel", 3)
    call.loses_marks = True
    await call.run(4.0)


async def held_turn(call: VirtualSession) -> None:
    call.say(Text(token="kept back ", last=True, turn="h", hold=True))
    call.utters("vowel", 3)
    await call.run(0.15)
    call.say(Commit(turn="h"))
    await call.run(3.0)


async def discarded_in_doubt(call: VirtualSession) -> None:
    call.say(Text(token="kept back ", last=True, turn="h", hold=True))
    call.utters("vowel", 3)
    await call.run(0.15)
    call.say(Discard(turn="h"))
    await call.run(3.0)


async def on_hold_in_doubt(call: VirtualSession) -> None:
    call.utters("vowel", 3)
    await call.run(0.12)
    call.session.on_hold(True)
    await call.run(2.0)
    call.session.on_hold(False)
    await call.run(2.0)


async def end_in_doubt(call: VirtualSession) -> None:
    call.utters("word", 3)
    call.say(End(handoff_data="x"))
    await call.run(3.0)


async def committed_end_in_doubt(call: VirtualSession) -> None:
    call.utters("word", 3)
    call.say(End(handoff_data="x"), End(commit=True))
    await call.run(3.0)


async def transfer_in_doubt(call: VirtualSession) -> None:
    call.utters("word", 20)
    call.say(Transfer(target="+4930123456"), Text(token="an answer ", last=True))
    await call.run(4.0)


async def committed_transfer_in_doubt(call: VirtualSession) -> None:
    call.utters("word", 20)
    call.say(Transfer(target="+4930123456", handoff_data="x", commit=True), Text(token="an answer ", last=True))
    await call.run(4.0)


async def carrier_ends(call: VirtualSession) -> None:
    call.utters("word", 3)
    call.session.on_leg_closed("error", EndCause(by="carrier", sip_status=503, q850=41, text="failure"))
    await call.run(1.0)


async def manager_lost_in_doubt(call: VirtualSession) -> None:
    call.utters("vowel", 3)
    await call.run(0.12)
    call.session.on_dialogue_lost()
    await call.run(3.0)


async def engine_breaks_in_doubt(call: VirtualSession) -> None:
    call.utters("vowel", 3)
    await call.run(0.12)
    for spoken in call.spoken:
        spoken.fail()
    await call.run(2.0)


async def nobody(call: VirtualSession) -> None:
    await call.run(3.0)


SCRIPTS: list[Callable[[VirtualSession], Awaitable[None]]] = [
    onset, hum, vowel_that_ends, vowel_that_becomes_a_word, long_hum, short_word, breath, digit, digit_in_doubt, cancel,
    cancel_in_doubt, speaks_on_over_the_next_turn, tail_after_a_cut, tail_after_a_digit, marks, held_turn,
    discarded_in_doubt, on_hold_in_doubt, end_in_doubt, committed_end_in_doubt, transfer_in_doubt,
    committed_transfer_in_doubt, carrier_ends, manager_lost_in_doubt, engine_breaks_in_doubt, nobody,
]  # fmt: skip

BEGINNINGS: dict[str, tuple[float, Inbound]] = {
    "in speech": (0.5, Text(token=LONG, last=True)),
    "in an open turn": (0.7, Text(token="one two three four five ")),
}

SCENES = [f"{script.__name__} {beginning}" for script in SCRIPTS for beginning in BEGINNINGS]
SCRIPTED = [f"{policy}: {scene}" for scene in SCENES for policy in POLICIES]


async def scripted(name: str) -> list[str]:
    """Return the lines of one of ``SCRIPTED``."""
    return await (await scripted_call(name)).finish()


async def scripted_call(name: str) -> VirtualSession:
    """Return one of ``SCRIPTED`` before the caller hangs up."""
    policy, _, rest = name.partition(": ")
    script_name, _, where = rest.partition(" ")
    # Unless the policy says so, the manager has no extensions: nothing of what it asks for is withdrawn.
    settings: dict[str, Any] = {"dialogue": {"extensions": False}, "calling": {"allowed_targets": ["+49*"]}} | POLICIES[
        policy
    ]
    call = VirtualSession(**settings, lead_ms=100, has_marks=True, seed=1)
    call.transfers_are = TransferStart.HANDED_OVER
    call.partials = 0.0
    call.says = ["Stop it."] if "word" in script_name or "speaks" in script_name else ["Yeah."]
    await call.run(0.01)
    wait_s, message = BEGINNINGS[where]
    call.say(message)
    await call.run(wait_s)
    await next(script for script in SCRIPTS if script.__name__ == script_name)(call)
    return call


async def interleaved(seed: int) -> list[str]:
    """Return the lines of a random call."""
    rng = random.Random(seed)
    route = {
        "interruptible": rng.choice(["any", "any", "any", "speech", "dtmf", "none"]),
        "preemptible": rng.random() < 0.15,
        "ignore_backchannel": rng.random() < 0.4,
        "partial_prompts": rng.random() < 0.3,
        "dtmf_detection": rng.random() < 0.9,
        "report_input_during_agent_speech": rng.choice(["none", "none", "any", "speech", "dtmf"]),
        "events": rng.choice([[], [], ["speaker-events"], ["speaker-events", "tokens-played"]]),
        "fallback": rng.choice(["", "one moment"]),
        "welcome_greeting": rng.choice(["", "", "hello there"]),
    }
    call = VirtualSession(
        route,
        recogniser=rng.random() < 0.6,
        barge_in={
            "false_alarm_ms": rng.choice([0, 0, 300, 700]),
            "pause_ms": rng.choice([64, 64, 0]),
            "max_hum_ms": rng.choice([0, 300, 900]),
        },
        dialogue={
            "stale_ms": rng.choice([300, 300, 60]),
            "end_drain": rng.random() < 0.8,
            "extensions": seed >= DEPARTING,
        },
        calling={"allowed_targets": ["+49*"]},
        lead_ms=rng.choice([0, 100, 400]),
        has_marks=rng.random() < 0.5,
        can_clear=rng.random() < 0.8,
        seed=seed,
    )
    call.engine_s = rng.choice([0.0, 0.0, 0.05, 0.3])
    call.loses_marks = rng.random() < 0.1
    call.notes_cause = seed >= DEPARTING
    await call.run(0.01)
    call.say(Text(token=rng.choice([LONG, "one two three "]), last=rng.random() < 0.5))
    for _ in range(rng.randrange(4, 25)):
        if seed >= DEPARTING and rng.random() < 0.15:
            _depart(call, rng)
        _act(call, rng)
        await call.run(rng.choice([0.0, 0.03, 0.1, 0.1, 0.35]) * (0.5 + rng.random()))
    await call.run(rng.choice([0.0, 2.0]))
    return await call.finish()


def _depart(call: VirtualSession, rng: random.Random) -> None:
    """Let one side begin to leave."""
    call.transfers_are = rng.choice(list(TransferStart))
    match rng.randrange(8):
        case 0 | 1:
            call.say(End(handoff_data=rng.choice([None, "x"]), commit=rng.random() < 0.3))
        case 2 | 3 | 4:
            target = rng.choice(["+4930123456", "+1555"])
            call.say(Transfer(target=target, handoff_data="y", commit=rng.random() < 0.3))
        case 5 | 6:
            call.session.on_transferred(rng.choice(["", "486 Busy Here"]))
        case _:
            by: Any = rng.choice([None, "caller", "agent", "carrier"])
            call.session.on_leg_closed(rng.choice(["hangup", "error"]), EndCause(by=by, q850=rng.choice([None, 16])))


def _act(call: VirtualSession, rng: random.Random) -> None:
    def one_of(*ids: str) -> str:
        return rng.choice([*ids, *(turn.id for turn in call.session.turns.live)])

    interruptible: Any = rng.choice([None, None, "any", "speech", "dtmf", "none"])
    token = rng.choice(["", " ", "word ", "two words ", "end.", "a b c d ", LONG])
    match rng.randrange(24):
        case 0 | 1 | 2:
            call.say(Text(token=token, last=rng.random() < 0.5, interruptible=interruptible))
        case 3:
            call.say(Text(token=token, last=rng.random() < 0.5, turn=one_of("x1", "x2", "x3")))
        case 4:
            call.say(Text(token=token, last=rng.random() < 0.7, turn=f"h{rng.randrange(4)}", hold=True))
        case 5:
            decisions: list[Inbound] = [Commit(turn=one_of("h0", "h1")), Discard(turn=one_of("h0", "h1"))]
            call.say(rng.choice(decisions))
        case 6:
            call.say(Cancel(turn=rng.choice(["", "", one_of("nobody")])))
        case 7:
            call.session.on_digit(rng.choice("0123456789*#"))
        case 8:
            call.session.caller.on_dtmf_heard("7")
        case 9:
            call.say(Mark(name=f"m{rng.randrange(1000)}"))
        case 10:
            clip = Play(source=rng.choice(["clip", "missing"]), preemptible=rng.choice([None, True]))
            others: list[Inbound] = [clip, SendDigits(digits=rng.choice(["12", "beside"]))]
            call.say(rng.choice(others))
        case 11 if call.spoken:
            rng.choice(call.spoken).fail()
        case 12 if rng.random() < 0.3:
            call.session.on_dialogue_lost()
        case 13 if rng.random() < 0.15:
            call.say(End(handoff_data="x"))
        case 14:
            call.say(Language(tts_language="de-DE", transcription_language=rng.choice(["", "", "xx", "en-IN"])))
        case 15:
            call.session.on_hold(rng.random() < 0.4)
        case 16:
            call.session.on_playback(started=rng.random() < 0.5)
        case 17 if rng.random() < 0.3 and not call.plan:
            call.goes_deaf()
        case _:
            for _ in range(rng.randrange(1, 4)):
                kind = rng.choice(["word", "word", "word", "vowel", "vowel", "hum", "far", "noise", "silence"])
                call.utters(kind, rng.choice([1, 2, 3, 5, 12, 30]))


def run_all(of: Callable[[Any], Awaitable[T]], which: list[Any]) -> list[T]:
    """Run calls one after the other; each starts at the same second."""

    async def main() -> list[T]:
        return [await of(one) for one in which]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def digest(calls: object) -> str:
    """Return a digest of all lines of some calls."""
    return hashlib.sha256(json.dumps(calls).encode()).hexdigest()[:16]


def random_digest(block: int) -> str:
    """Return the digest of ``BLOCK`` random calls."""
    return digest(run_all(interleaved, list(range(block * BLOCK, (block + 1) * BLOCK))))


# --- the table -------------------------------------------------------------------------------------------------------

_FRAME = re.compile(r"(\S+) frame (\S+)/(\S+)")
_TOLD = re.compile(r"(\S+) tell (\w+)\((.*)\)")
_CALLER = ("clear", "dtmf", "hang_up", "transfer")
_HEARD_BY_CALLER = ("'accepted'", "'started'", "tokensPlayed")
"""Parts of messages that repeat what the caller hears; the table leaves them out, as it does captions."""


def table(scene: str) -> str:
    """Return a scene's part of ``scripted.txt``: one paragraph for the policies whose calls are equal in every line."""
    calls = run_all(scripted, [f"{policy}: {scene}" for policy in POLICIES])
    policies: dict[str, list[str]] = {}
    stories: dict[str, list[str]] = {}
    for policy, lines in zip(POLICIES, calls, strict=True):
        policies.setdefault(digest(lines), []).append(policy)
        stories[digest(lines)] = [f"  caller   {_caller(lines)}", *(f"  manager  {told}" for told in _told(lines))]
    parts = ["\n".join([f"{'; '.join(policies[key])}: {key}", *stories[key]]) for key in policies]
    return "\n".join([f"## {scene}", *parts]) + "\n"


def _caller(lines: list[str]) -> str:
    """Return what the phone receives: the words of each run of frames, and everything that interrupts a run."""
    events: list[str] = []
    run: list[str] = []
    for line in lines:
        at, verb, *_ = line.split()
        if frame := _FRAME.fullmatch(line):
            _, turn, word = frame.groups()
            if run and run[1] == turn:
                run[3:] = [word, at]
            else:
                run = [at, turn, word, word, at]
                events.append("")
            events[-1] = f"{run[0]} {run[1]}/{run[2]}-{run[3]} to {run[4]}"
        elif verb in _CALLER:
            run = []
            events.append(line)
    return ", ".join(events)


def _told(lines: list[str]) -> list[str]:
    """Return the messages to the manager, without the names of their fields."""
    told: list[str] = []
    for line in lines:
        if " ended by " in line:
            told[-1] += line.partition(" ended")[2]
        elif (match := _TOLD.fullmatch(line)) and match[2] != "Caption":
            if not any(part in line for part in _HEARD_BY_CALLER):
                fields = re.sub(r"(?<=[(, ])[a-z_]+=", "", f"({match[3]}")[1:]
                told.append(f"{match[1]} {match[2]}({fields})")
    return told


def recorded() -> tuple[dict[str, str], list[str]]:
    """Return the recorded table by scene, and the digests of the random calls."""
    parts = (VECTORS / "scripted.txt").read_text().split("## ")[1:]
    return {part.partition("\n")[0]: f"## {part}" for part in parts}, (VECTORS / "random.txt").read_text().split()


def _main(verb: str, which: str = "") -> int:
    if verb == "show":
        of, key = (interleaved, int(which)) if which.isdigit() else (scripted, which)
        print(*run_all(of, [key])[0], sep="\n")  # type: ignore[arg-type]
        return 0
    tables = {scene: table(scene) for scene in SCENES}
    digests = [random_digest(block) for block in range(RANDOM // BLOCK)]
    if verb == "record":
        (VECTORS / "scripted.txt").write_text("".join(tables.values()))
        (VECTORS / "random.txt").write_text("\n".join(digests) + "\n")
        return 0
    before, digests_before = recorded()
    other = [scene for scene in SCENES if tables[scene] != before.get(scene)]
    blocks = [at for at, (new, old) in enumerate(zip(digests, digests_before, strict=True)) if new != old]
    print(f"{len(other)} scenes and {len(blocks)} blocks of random calls differ", *other, *blocks[:20], sep="\n")
    return bool(other or blocks)


if __name__ == "__main__":
    logging.disable()
    sys.exit(_main(*sys.argv[1:]))
