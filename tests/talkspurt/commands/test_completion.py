"""The scripts for shells, of which bash is asked here as if somebody had pressed the tab key."""

import shutil
import subprocess
from pathlib import Path

import pytest

from talkspurt.commands.completion import SHELLS, script


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert shutil.which("bash"), "bash is missing"
    path = tmp_path_factory.mktemp("completion") / "talkspurt.bash"
    path.write_text(script("bash"))
    return path


def completed(bash: Path, *words: str) -> list[str]:
    """Return bash's offers for ``talkspurt words``, where the last word is not complete."""
    ask = f"""
        source {bash}
        COMP_WORDS=(talkspurt "$@")
        COMP_CWORD=$#
        $(complete -p talkspurt | sed 's/.*-F \\([^ ]*\\).*/\\1/') talkspurt "${{@: -1}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", ask, "bash", *words], capture_output=True, text=True, check=True, cwd=bash.parent
    )
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    "words, offered",
    [
        (["b"], ["bench"]),
        (["engine", "make"], ["make-checkpoint"]),
        (["bench", "ga"], ["gateway"]),
        (["bench", "call", "--can"], ["--cancel-share"]),
        (["bench", "call", "--transport", "w"], ["webrtc"]),
        (["completion", ""], list(SHELLS)),
        (["serve", "-c", "talk"], ["talkspurt.bash"]),
    ],
    ids=" ".join,
)
def test_bash_offers_commands_options_choices_and_files(bash: Path, words: list[str], offered: list[str]) -> None:
    assert completed(bash, *words) == offered


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_knows_every_command(shell: str) -> None:
    text = script(shell)
    assert all(name in text for name in ("serve", "make-checkpoint", "conformance", "cancel-share"))
