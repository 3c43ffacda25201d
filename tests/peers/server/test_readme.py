"""The README is short and true: its commands and its bot run as written, and what it names exists."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from talkspurt import __version__
from tests.peers.ears import transcript_of, understood
from tests.peers.live_server import Live, child_environment, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.M | re.S)


COMMANDS = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]
QUESTION = "What are your opening hours?"
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
    """Results of the README's commands, of a call to the demo's script, and of a call to the README's bot."""

    folder: Path
    done: dict[str, Done]
    server: Live


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Played]:
    folder = tmp_path_factory.mktemp("readme")
    (folder / "configs").symlink_to(ROOT / "configs")
    for part in ("talkspurt", "gateway", "tts_engine", "sip_bridge", "codecs"):
        (folder / part).symlink_to(ROOT / part)
    async with serve(folder / "server", ROOT / "configs/demo.yaml") as live:
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
                await keep(words[0], words)
        await run(["say", QUESTION, "-o", "question.wav"], folder)
        # Now, because the bot would share the calls of its route with the manager that `call --text` plays.
        async with bot(live, folder):
            await keep("bot", ["call", f"{media}/call", "--say-wav", "question.wav", "-o", "bot.wav", "--json"])
        yield Played(folder, done, live)


@asynccontextmanager
async def bot(live: Live, folder: Path) -> AsyncIterator[None]:
    """The README's bot, connected to this server instead of the default port."""
    (source,) = blocks("python")
    assert "127.0.0.1:8080" in source
    (folder / "bot.py").write_text(source.replace("127.0.0.1:8080", live.address))
    process = await asyncio.create_subprocess_exec(sys.executable, "bot.py", env=child_environment(), cwd=folder)
    try:
        yield
        assert process.returncode is None, "the bot has ended before its caller hung up"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


async def test_the_readme_has_the_commands_that_are_tested_here() -> None:
    assert {words[0] for words in OURS} == {"call", "say"}
    assert all(words[0] == ".venv/bin/talkspurt" for words in COMMANDS)


@pytest.mark.slow
async def test_every_command_does_what_it_should(played: Played) -> None:
    failed = {name: done for name, done in played.done.items() if done.code != 0}
    assert not failed
    assert len(played.done) == len(OURS) + 2


@pytest.mark.slow
async def test_the_first_call_is_heard_whole(played: Played) -> None:
    """With the default lead. How long a stall it covers is tested on a virtual clock; here the machine may stall."""
    report = json.loads(played.done["call"].output)
    (turn,) = report["turns"]
    assert turn["outcome"] == "finished" and report["audio_ms"] == turn["audioMs"]
    assert report["violations"] == {} and "gaps" in report
    assert report["first_packet_ms"] > 0


@pytest.mark.slow
async def test_what_is_heard_is_intelligible(played: Played) -> None:
    assert json.loads(played.done["keys"].output)["violations"] == {}
    (call,) = [words for words in OURS if words[0] == "call"]
    (say,) = [words for words in OURS if words[0] == "say"]
    for text, recording in (
        (option(call, "--text"), option(call, "-o")),
        (say[1], option(say, "-o")),
        ("We are open from Monday to Friday", "keys.wav"),  # a key pressed at the demo is answered
    ):
        heard = transcript_of(played.folder / recording)
        assert understood(text, heard), heard


async def test_the_server_greets_as_shown() -> None:
    shown = "".join(blocks("console"))
    assert "$ make run" in shown and f"talkspurt {__version__} is ready: http://127.0.0.1:8080/" in shown


async def test_the_make_targets_exist() -> None:
    targets = set(re.findall(r"`?make ([a-z-]+)", README))
    assert {"run", "test", "check", "bench"} <= targets
    for target in targets:
        done = await asyncio.to_thread(subprocess.run, ["make", "-n", target], cwd=ROOT, capture_output=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
async def test_the_bot_greets_its_caller_and_repeats_what_it_heard(played: Played) -> None:
    assert json.loads(played.done["bot"].output)["violations"] == {}
    heard = transcript_of(played.folder / "bot.wav")
    assert understood("You said: " + QUESTION, heard), heard


async def test_the_readme_is_short() -> None:
    assert len(README.encode()) < 7000
    assert len(README.split()) <= 900
    prose = re.sub(r"^```.*?^```|^#.*?$|^\|.*?$|^- ", "\n", README, flags=re.M | re.S)
    prose = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", prose)
    sentences = re.split(r"(?<=[.:?!])\s+|\n\n|\n\* ", prose)
    assert [sentence for sentence in sentences if len(sentence.split()) > 30] == []


async def test_the_files_named_are_there() -> None:
    named = set(re.findall(r"\]\(([\w/.-]+)\)", README))
    assert len(named) > 5
    missing = {name for name in named if not (ROOT / name).exists()}
    assert not missing
