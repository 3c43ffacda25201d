"""The README is true: its commands run as written, what they print is what it says, and what it names is there."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
import wave
from collections.abc import AsyncIterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from gateway.config import LimitsConfig
from gateway.dialogue.wire import decode
from talkspurt import __version__
from tests.peers.live_server import Live, child_environment, serve
from voicecodecs.pcm import to_float32
from voicecodecs.resample import Resampler

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.M | re.S)


COMMANDS = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]
OURS = [words[1:] for words in COMMANDS if words[0] == ".venv/bin/talkspurt"]


@dataclass(frozen=True, slots=True)
class Done:
    """One command that has run."""

    code: int
    output: str
    errors: str


async def run(words: list[str], folder: Path) -> Done:
    """``talkspurt WORDS...`` in a folder of its own, where ``configs/`` is the repository's."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "talkspurt", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=child_environment(),
        cwd=folder,
    )
    output, errors = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, output.decode(), errors.decode())


@dataclass(frozen=True, slots=True)
class Played:
    """What came of the README's commands and of calls to the demo's script."""

    folder: Path
    done: dict[str, Done]
    server: Live


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Played]:
    folder = tmp_path_factory.mktemp("readme")
    (folder / "configs").symlink_to(ROOT / "configs")
    for part in ("talkspurt", "gateway", "tts_engine", "sip_bridge", "codecs"):
        (folder / part).symlink_to(ROOT / part)
    # A test machine that does much else may stop for a moment; gaps of ours would still be gaps.
    busy = {"TALKSPURT__PLAYOUT__LEAD_MS": "500"}
    async with serve(folder / "server", ROOT / "configs/demo.yaml", busy) as live:
        done: dict[str, Done] = {}

        async def keep(name: str, words: list[str]) -> None:
            done[name] = await run(words, folder)

        # Calls last as long as their speech: all of them at once. The README's port is the default one; ours is free.
        media = f"{live.ws}/media/twilio"
        await asyncio.gather(
            *(keep(words[0], [words[0], media, *words[1:]]) for words in OURS if words[0] == "call"),
            keep("keys", ["call", media, "--dtmf", "3", "-o", "keys.wav", "--json"]),
        )
        for words in OURS:
            if words[0] != "call":
                await keep(" ".join(words[:2]) if words[0] == "config" else words[0], words)
        yield Played(folder, done, live)


@pytest.fixture(scope="module")
def recognised(played: Played) -> Any:
    """A function from a WAV file's name to the words in it."""
    from moonshine_voice import ModelArch, Transcriber, get_model_path

    transcriber = Transcriber(str(get_model_path("tiny-en")), ModelArch.TINY)

    def words(name: str) -> list[str]:
        with wave.open(str(played.folder / name), "rb") as source:
            pcm = np.frombuffer(source.readframes(source.getnframes()), "<i2")
            up = Resampler(source.getframerate(), 16000)
        sound = np.concatenate((up.process(to_float32(pcm)), up.flush()))
        lines = transcriber.transcribe_without_streaming(sound.tolist(), 16000).lines
        return re.findall(r"[a-z]+", " ".join(line.text for line in lines).lower())

    yield words
    transcriber.close()


def right_words(text: str, heard: list[str]) -> tuple[int, int]:
    """How many words of a text were heard, in order, and how many it has. Numbers do not count: they are read out."""
    words = re.findall(r"[a-z]+", text.lower())
    matches = SequenceMatcher(None, words, heard, autojunk=False).get_matching_blocks()
    return sum(block.size for block in matches), len(words)


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


async def test_the_readme_has_the_commands_that_are_tested_here() -> None:
    assert {words[0] for words in OURS} == {"call", "say", "config"}
    assert all(words[0] in (".venv/bin/talkspurt", "make") for words in COMMANDS)


@pytest.mark.slow
async def test_every_command_does_what_it_should(played: Played) -> None:
    failed = {name: done for name, done in played.done.items() if done.code != 0}
    assert not failed
    assert len(played.done) == len(OURS) + 1


@pytest.mark.slow
async def test_the_first_call_has_no_gaps(played: Played) -> None:
    report = json.loads(played.done["call"].output)
    assert report["gaps"] == 0 and report["violations"] == {}
    assert report["first_packet_ms"] > 0
    assert [turn["outcome"] for turn in report["turns"]] == ["finished"]


@pytest.mark.slow
async def test_a_key_pressed_at_the_demo_is_answered(played: Played, recognised: Any) -> None:
    # No word on gaps: a caller who is not the manager too cannot tell one from the script's own pauses.
    assert json.loads(played.done["keys"].output)["violations"] == {}
    right, words = right_words("We are open from Monday to Friday", recognised("keys.wav"))
    assert right > words / 2


@pytest.mark.slow
async def test_what_is_heard_is_intelligible(played: Played, recognised: Any) -> None:
    (call,) = [words for words in OURS if words[0] == "call"]
    (say,) = [words for words in OURS if words[0] == "say"]
    counts = [  # right words, words
        # The recogniser writes the product's name in ways of its own.
        right_words(option(call, "--text").replace("talkspurt", ""), recognised(option(call, "-o"))),
        right_words(say[1], recognised(option(say, "-o"))),
        right_words("We are open from Monday to Friday. What else can I do for you?", recognised("keys.wav")),
    ]
    assert counts[0][0] >= 0.9 * counts[0][1], counts
    # Less for the last, where the recogniser cannot tell "for" from "4" and "to" from "2".
    assert sum(right for right, _ in counts) >= 0.8 * sum(words for _, words in counts), counts


async def test_the_server_greets_as_shown() -> None:
    shown = "".join(blocks("console"))
    assert "$ make run" in shown and f"talkspurt {__version__} is ready: http://127.0.0.1:8080/" in shown


async def test_the_make_targets_exist() -> None:
    targets = set(re.findall(r"`?make ([a-z]+)", README))
    assert {"run", "test", "check", "bench"} <= targets
    for target in targets:
        done = await asyncio.to_thread(subprocess.run, ["make", "-n", target], cwd=ROOT, capture_output=True)
        assert done.returncode == 0, done.stderr


async def test_the_messages_shown_are_the_protocols() -> None:
    (shown,) = blocks("json")
    messages = [json.loads(line) for line in shown.splitlines()]
    assert [message["type"] for message in messages] == ["setup", "prompt", "text", "text", "interrupt"]
    for message in messages[2:4]:
        line = json.dumps(message | {"sessionId": "VX" + "0" * 32})
        assert decode(line, limits=LimitsConfig(), multiplexed=True)[1].token == message["token"]  # type: ignore[union-attr]


async def test_the_files_named_are_there() -> None:
    named = set(re.findall(r"\]\(([\w/.-]+)\)", README)) | set(
        re.findall(r"`((?:configs|docs|gateway)/[\w/.-]+)`", README)
    )
    assert len(named) > 5
    missing = {name for name in named if not (ROOT / name).exists()}
    assert not missing
