"""The command line from outside: exit codes, one clear line, no traceback."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from talkspurt import __version__
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
COMMANDS = [
    "serve", "engine", "engine make-checkpoint", "say", "call", "bench", "voices", "voices list", "voices add",
    "voices show", "voices remove", "config", "config check", "config show", "config schema", "config reference",
    "doctor",
]  # fmt: skip


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "codecs")])
    return {k: v for k, v in os.environ.items() if not k.startswith("TALKSPURT")} | {"PYTHONPATH": path} | more


def talkspurt(*arguments: str, cwd: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "talkspurt", *arguments],
        capture_output=True, text=True, timeout=PATIENCE_S, cwd=cwd, env=environment(**more),
    )  # fmt: skip


def test_version_is_that_of_the_distribution() -> None:
    done = talkspurt("--version")
    assert (done.returncode, done.stdout) == (0, f"talkspurt {__version__}\n")
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert setuptools["dynamic"]["version"] == {"attr": "talkspurt.__version__"}


def test_help_names_every_command() -> None:
    done = talkspurt("--help")
    assert done.returncode == 0
    for command in ("serve", "engine", "say", "call", "bench", "voices", "config", "doctor"):
        assert f"\n    {command} " in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from talkspurt.cli import main

    with pytest.raises(SystemExit) as left:
        main([*command.split(), "--help"])
    assert left.value.code == 0
    assert f"talkspurt {command} " in capsys.readouterr().out.partition("examples:")[2] + " "


def test_help_loads_none_of_what_commands_need() -> None:
    code = (
        "import sys; from talkspurt.cli import parser; parser()\n"
        "print(sorted({'pydantic', 'yaml', 'numpy', 'grpc', 'aiohttp', 'rich', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=ROOT)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "talkspurt: the following arguments are required: COMMAND (see talkspurt --help)"),
        (["serv"], "talkspurt: argument COMMAND: invalid choice: 'serv'"),
        (["say"], "talkspurt say: the following arguments are required: TEXT (see talkspurt say --help)"),
        (["say", "a", "--codec", "mp3"], "talkspurt say: argument --codec: invalid choice: 'mp3'"),
        (["config"], "talkspurt config: the following arguments are required: COMMAND"),
        (["engine", "make-checkpoint", "x"], "talkspurt engine make-checkpoint: the following arguments are required"),
        (["serve", "-c", "nowhere.yaml"], "talkspurt serve: nowhere.yaml: cannot be read: No such file or directory"),
        (["serve", "--port", "high"], "talkspurt serve: argument --port: expected 0 to 65535, got 'high'"),
        (["config", "check", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["call", "--text", ""], "talkspurt call: --text is empty, expected something to say"),
        (["call", "--text", "Hi.", "-o", "no/x.wav"], "talkspurt call: -o no/x.wav: there is no folder no"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(arguments: list[str], message: str) -> None:
    done = talkspurt(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(message)


def test_a_wrong_configuration_stops_every_command_that_reads_it(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("server:\n  prot: 1\n  host: [1]\n")
    done = talkspurt("serve", "-c", "my.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "talkspurt serve: my.yaml:2: unknown key server.prot; did you mean port? "
        "(and 1 more; `talkspurt config check` lists all)\n",
    )
    done = talkspurt("config", "check", "my.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            "my.yaml:2: unknown key server.prot; did you mean port?",
            "my.yaml:3: server.host: expected text; got a list",
        ],
    )


def test_a_good_configuration_is_said_to_be_good(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("server:\n  port: 0\nroutes: {default: {recogniser: ''}}\n")
    done = talkspurt("config", "check", "my.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "my.yaml: ok\n", "")
    (tmp_path / "my.yaml").write_text("routes: {sales: {}}\n")
    done = talkspurt("config", "check", "my.yaml", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("my.yaml: route sales cannot hear: ") and done.stdout.endswith("\nmy.yaml: ok\n")


def test_config_show_has_file_and_override() -> None:
    done = talkspurt("config", "show", TALKSPURT__SERVER__PORT="9001", TALKSPURT__CARRIERS__TWILIO__AUTH_TOKEN="abc")
    assert done.returncode == 0
    assert "  port: 9001\n" in done.stdout
    assert "auth_token: '**********'" in done.stdout and "abc" not in done.stdout


def test_config_schema_is_json() -> None:
    assert json.loads(talkspurt("config", "schema").stdout)["properties"]["server"]


def test_a_reader_that_leaves_is_no_noise() -> None:
    read, write = os.pipe()
    os.close(read)
    with subprocess.Popen(
        [sys.executable, "-m", "talkspurt", "config", "schema"],
        stdout=write, stderr=subprocess.PIPE, env=environment(), cwd=ROOT,
    ) as process:  # fmt: skip
        os.close(write)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (1, b"")


def test_an_interrupt_is_exit_130(tmp_path: Path) -> None:
    fifo = tmp_path / "my.yaml"
    os.mkfifo(fifo)  # there is no writer: the command waits in the middle of its work
    # A shell has what it starts in the background ignore interrupts, these tests and this command too.
    with subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-m", "talkspurt", "config", "check", str(fifo)],
        stderr=subprocess.PIPE, env=environment(), cwd=ROOT,
    ) as process:  # fmt: skip
        writer = os.open(fifo, os.O_WRONLY)  # returns when the command has opened the other end
        process.send_signal(signal.SIGINT)
        os.close(writer)  # one that comes just before the command begins to read is seen when that ends
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (130, b"")
