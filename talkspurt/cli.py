"""The command line. It reads the arguments, calls one function, and turns an error into one line and an exit code.

Exit codes: 0 done, 1 the job failed, 2 bad usage or configuration, 130 interrupted. A command's own code is imported
when the command runs. So `--help` answers at once, and a missing optional library affects only the commands that need
it.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from talkspurt import __version__

if TYPE_CHECKING:
    from talkspurt.config.settings import Config

Command = Callable[[argparse.Namespace], int]


class UsageError(Exception):
    """The arguments contradict each other. It becomes one line and exit code 2."""


class JobError(Exception):
    """The job could not be done. It becomes one line and exit code 1."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if sys.platform != "linux":  # calls are paced by its timerfd
        print(
            f"talkspurt needs Linux and this is {sys.platform}; on macOS use Docker, on Windows WSL 2", file=sys.stderr
        )
        return 2
    try:
        args = parser().parse_args(argv)
        code = _run(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output is gone (`| head`). Python flushes stdout again at exit, so it goes to /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(args: argparse.Namespace) -> int:
    from talkspurt.config.yaml_file import ConfigError

    command: Command = args.run
    try:
        return command(args)
    except (ConfigError, UsageError) as exc:
        return _fail(args, exc, 2)
    except JobError as exc:
        return _fail(args, exc, 1)


def _fail(args: argparse.Namespace, exc: Exception, code: int) -> int:
    from talkspurt.log import print_line

    print_line(f"{args.prog}: {exc}", sys.stderr)
    return code


# --- commands ----------------------------------------------------------------------------------------------------


def serve(args: argparse.Namespace) -> int:
    return _serve(args.config, {} if args.port is None else {"server.port": args.port})


def demo(args: argparse.Namespace) -> int:
    from talkspurt.samples import DEMO

    with tempfile.TemporaryDirectory(prefix="talkspurt-demo-") as folder:
        overrides = {} if args.port is None else {"server.port": args.port}
        if "TALKSPURT__CALLS__FOLDER" not in os.environ:
            overrides["calls.folder"] = folder  # the sample's is beside the package, which may be read-only
        return _serve(DEMO, overrides)


def _serve(path: Path | None, overrides: dict[str, str]) -> int:
    config = _served(path, overrides)
    module = "talkspurt.workers.supervisor" if config.server.workers > 1 else "talkspurt.build"

    def run() -> int:
        from talkspurt.start_checks import problems

        if missing := list(problems(config)):
            more = f" (and {len(missing) - 1} more; `talkspurt config check` lists all)" if missing[1:] else ""
            raise UsageError(missing[0] + more)
        _module("talkspurt.workers.listeners").check(config)
        return int(_module(module).serve(config))

    return _job(run)


def engine(args: argparse.Namespace) -> int:
    config = _served(args.config, {} if args.port is None else {"engine.listen": f"127.0.0.1:{args.port}"})
    return _job(lambda: _module("talkspurt.engines").run_engine(_module("talkspurt.prompts").with_greetings(config)))


def make_checkpoint(args: argparse.Namespace) -> int:
    _module("tts_engine.cosyvoice.checkpoint").make(
        args.directory, version=args.version, size=args.size, seed=args.seed
    )
    print(f"random weights in the layout of CosyVoice{args.version}: {args.directory}")
    return 0


def delegated(module: str) -> Command:
    """Return a command that is the function ``run(args) -> int`` of a module."""
    return lambda args: int(_module(module).run(args))


def config_check(args: argparse.Namespace) -> int:
    from talkspurt.config.settings import load
    from talkspurt.config.yaml_file import ConfigError
    from talkspurt.start_checks import problems, warnings

    try:
        config = load(args.file)
    except ConfigError as exc:
        for problem in exc.problems:
            print(problem, file=sys.stderr)
        return 2
    if missing := list(problems(config)):
        for line in missing:
            print(f"{args.file}: {line}", file=sys.stderr)
        return 2
    for line in warnings(config):
        print(f"{args.file}: {line}")
    print(f"{args.file}: ok")
    return 0


def config_show(args: argparse.Namespace) -> int:
    from talkspurt.config.settings import effective_yaml, load

    print(effective_yaml(load(args.file or args.config)), end="")
    return 0


def config_schema(args: argparse.Namespace) -> int:
    from talkspurt.config.reference import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return 0


def config_reference(args: argparse.Namespace) -> int:
    from talkspurt.config.reference import markdown

    print(markdown(), end="")
    return 0


def _job(run: Callable[[], int]) -> int:
    """Run a server.

    Raises:
        JobError: a port is in use, an engine does not start, or a model cannot be loaded.
    """
    from gateway.errors import GatewayError
    from tts_engine.errors import EngineError

    try:
        return run()
    except (OSError, EngineError, GatewayError) as exc:
        raise JobError(str(exc)) from exc


def _served(path: Path | None, overrides: dict[str, str]) -> Config:
    """Return the configuration of a server, and log as it says. Its errors too are lines of the log."""
    from gateway.config import LogConfig
    from talkspurt.config.settings import load
    from talkspurt.log import asks_for_json, configure

    configure(LogConfig(json_lines=asks_for_json(path, os.environ)))
    config = load(path, overrides=overrides)
    configure(config.log)
    return config


def _module(name: str) -> ModuleType:
    """Import a command's code.

    Raises:
        JobError: this installation does not have the code, or lacks a library that it needs.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name == name:
            raise JobError("not available in this version") from None
        raise JobError(f"needs the Python package {exc.name!r}, which is not installed") from None


# --- arguments ---------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line with the command's full name, which points to the help."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}{self._nearest(message)} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse arguments. An unknown one is refused here, by the command that was given it and knows its own."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def _nearest(self, message: str) -> str:
        """Return a hint if a wrong option or choice resembles a right one."""
        if found := re.match(r"unrecognized arguments: (--[\w-]+)", message):
            known = [name for action in self._actions for name in action.option_strings]
            wrong = found[1]
        elif found := re.match(r"argument .*: invalid choice: '(.*?)' \(choose from (.*)\)", message):
            wrong, known = found[1], [name.strip(" '") for name in found[2].split(",")]
        else:
            return ""
        near = difflib.get_close_matches(wrong, known, 1)
        return f", did you mean {near[0]}?" if near else ""


def parser() -> argparse.ArgumentParser:
    root = _Parser(
        prog="talkspurt",
        description="Telephony voice-bot media server: text turns in, paced telephone speech out.",
        epilog="First call: `talkspurt demo`, then elsewhere `talkspurt call -o heard.wav`.",
    )
    root.add_argument("--version", action="version", version=f"talkspurt {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)

    p = _add(
        commands,
        "serve",
        serve,
        "run the gateway, and the engine beside it unless the configuration names one",
        "talkspurt config init laptop && talkspurt serve -c talkspurt.yaml --port 8080",
    )
    _add_config(p)
    _add_serve_port(p)

    p = _add(
        commands,
        "demo",
        demo,
        "serve the demo that the package carries: a script that answers, and a console with a phone",
        "talkspurt demo --port 8080",
    )
    _add_serve_port(p)

    _add_engine(commands)
    _add_say(commands)
    _add_call(commands)
    _add_canary(commands)
    _add_conformance(commands)
    _add_bench(commands)
    _add_voices(commands)
    _add_keys(commands)
    _add_recording(commands)
    _add_config_commands(commands)

    p = _add(
        commands,
        "import-twiml",
        delegated("talkspurt.commands.import_twiml"),
        "print the route that treats calls as a <ConversationRelay> of TwiML does",
        "talkspurt import-twiml answer.xml > route.yaml\n"
        "curl -s https://bot.example.com/twiml | talkspurt import-twiml -",
    )
    p.add_argument(
        "file", metavar="FILE", type=Path, help="TwiML with <Connect><ConversationRelay>; - for standard input"
    )

    p = _add(
        commands,
        "doctor",
        delegated("talkspurt.doctor.command"),
        "show what works on this machine",
        "talkspurt doctor -c talkspurt.yaml --json\ntalkspurt doctor --model models/Fun-CosyVoice3-0.5B-2512",
    )
    p.add_argument(
        "--model", type=Path, metavar="DIR", help="check a CosyVoice model directory instead, and let it speak"
    )
    p.add_argument(
        "--compare",
        action="append",
        metavar="KEY=VALUE",
        help="with --model: speak sentences with this setting of engine.cosyvoice too, and measure the difference",
    )
    p.add_argument(
        "--wav", type=Path, default=Path("compared"), metavar="DIR", help="folder of the compared sounds (compared)"
    )
    _add_config(p)
    _add_json(p)

    p = _add(
        commands,
        "completion",
        delegated("talkspurt.commands.completion"),
        "print the shell completion of commands and options",
        'eval "$(talkspurt completion bash)"    # in ~/.bashrc\n'
        "talkspurt completion zsh > ~/.zfunc/_talkspurt    # a folder of fpath, before compinit\n"
        "talkspurt completion fish > ~/.config/fish/completions/talkspurt.fish",
    )
    p.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")
    return root


def _add_engine(commands: argparse._SubParsersAction[_Parser]) -> None:
    p = _add(
        commands,
        "engine",
        engine,
        "run a speech engine alone (gRPC, health, metrics)",
        "talkspurt engine -c talkspurt.yaml --port 50051\n"
        "talkspurt engine make-checkpoint /tmp/cosyvoice3 --version 3 --size tiny",
    )
    _add_config(p)
    p.add_argument("--port", type=_port, metavar="N", help="TCP port on 127.0.0.1 instead of engine.listen")
    sub = p.add_subparsers(metavar="COMMAND")
    p = _add(
        sub,
        "make-checkpoint",
        make_checkpoint,
        "write a model directory of random weights in the official layout",
        "talkspurt engine make-checkpoint /tmp/cosyvoice3 --version 3 --size tiny --seed 1",
    )
    p.add_argument("directory", metavar="DIR", type=Path, help="new directory")
    p.add_argument("--version", type=int, choices=(2, 3), required=True, help="CosyVoice generation")
    p.add_argument(
        "--size", choices=("tiny", "full"), required=True, help="tiny runs on a CPU; full has the real shapes"
    )
    p.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the weights (default 0)")


def _add_say(commands: argparse._SubParsersAction[_Parser]) -> None:
    p = _add(
        commands,
        "say",
        delegated("talkspurt.commands.say"),
        "speak one text into a file",
        'talkspurt say "Your order has been shipped." -o order.wav --json\n'
        'talkspurt say "Hello." --codec pcmu --raw -o - | aplay -t raw -f MU_LAW -r 8000',
    )
    p.add_argument("text", metavar="TEXT", help="what to say; - reads standard input")
    p.add_argument(
        "-o",
        "--output",
        default="speech.wav",
        metavar="FILE",
        help="WAV file, - for standard output (default speech.wav)",
    )
    p.add_argument("--voice", default="", metavar="V", help="voice id (default: the engine's)")
    p.add_argument("--language", default="", metavar="TAG", help="BCP 47 tag, e.g. en-US (default: the voice's)")
    p.add_argument("--speed", type=float, default=1.0, metavar="X", help="0.25 to 4 (default 1)")
    p.add_argument(
        "--codec",
        choices=("pcmu", "pcma", "g722", "opus", "l16"),
        default="l16",
        help="what the engine encodes; the WAV holds what a listener hears of it (default l16)",
    )
    p.add_argument(
        "--rate",
        type=int,
        metavar="HZ",
        help="sample rate; pcmu and pcma 8000, g722 16000, opus 48000, l16 any (24000)",
    )
    p.add_argument("--raw", action="store_true", help="write the codec's payloads as they are, without a WAV header")
    p.add_argument(
        "--engine",
        type=_engine_address,
        metavar="TARGET",
        help="gRPC address of a running engine, e.g. 127.0.0.1:50051 (default: one of its own)",
    )
    _add_config(p)
    _add_json(p)


def _add_call(commands: argparse._SubParsersAction[_Parser]) -> None:
    p = _add(
        commands,
        "call",
        delegated("talkspurt.simulator.caller"),
        "call a gateway as a carrier would, and measure what is heard",
        'talkspurt call --text "What are your opening hours?" -o heard.wav --json\n'
        "talkspurt call ws://127.0.0.1:8080/media/twilio/default --dtmf 12# --barge-in-after 800",
    )
    p.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="media address (default ws://127.0.0.1:8080/media/DIALECT, audiosocket://127.0.0.1:9092[/ROUTE], "
        "sip:100@127.0.0.1:5060[?route=ROUTE]; ?http=[HOST:]PORT names the HTTP server that is not at port 8080)",
    )
    p.add_argument("--dialect", metavar="NAME", help="which carrier to play (default: that of the address, or twilio)")
    what = p.add_mutually_exclusive_group()
    what.add_argument("--text", metavar="T", help="text that the gateway speaks to this call")
    what.add_argument(
        "--script", type=Path, metavar="FILE", help="what the caller does, step by step (docs/simulated-calls.md)"
    )
    p.add_argument("--say-wav", type=Path, metavar="FILE", help="WAV file that the caller says")
    p.add_argument("--dtmf", metavar="KEYS", help="keys that the caller presses, e.g. 12#")
    p.add_argument(
        "--barge-in-after",
        type=float,
        metavar="MS",
        help="interrupt this long after the first sound: by --say-wav, --dtmf, or else a cancel of the manager",
    )
    p.add_argument("--seconds", type=float, default=60.0, metavar="S", help="longest wait for quiet (default 60)")
    p.add_argument("--from", dest="from_", metavar="NUMBER", help="who calls")
    p.add_argument("--to", metavar="NUMBER", help="who is called; a SIP address names it")
    p.add_argument(
        "--parameter", metavar="NAME=VALUE", action="append", default=[], help="custom parameter of the stream"
    )
    p.add_argument("-o", "--output", type=Path, metavar="FILE", help="WAV file of what the caller hears")
    _add_json(p)


def _add_canary(commands: argparse._SubParsersAction[_Parser]) -> None:
    p = _add(
        commands,
        "canary",
        delegated("talkspurt.commands.canary"),
        "call a gateway again and again, and show as metrics what callers hear",
        "talkspurt canary ws://127.0.0.1:8080/media/twilio/call --every 60 --port 9465\n"
        "talkspurt canary --once --json    # exit code 1 if the call was not as it should be",
    )
    p.add_argument("url", metavar="URL", nargs="?", help="media address (default ws://127.0.0.1:8080/media/DIALECT)")
    p.add_argument("--dialect", default="twilio", metavar="NAME", help="which carrier to play (default twilio)")
    p.add_argument(
        "--text",
        metavar="T",
        help="what is spoken to the canary (default: a new sentence each time, which no cache has)",
    )
    p.add_argument("--once", action="store_true", help="make one call, without metrics")
    p.add_argument("--every", type=_positive, default=60.0, metavar="S", help="seconds between calls (default 60)")
    p.add_argument("--port", type=_port, default="9465", metavar="N", help="TCP port of the metrics (default 9465)")
    p.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="their address (default 127.0.0.1)")
    p.add_argument("--seconds", type=_positive, default=30.0, metavar="S", help="longest call (default 30)")
    p.add_argument(
        "--first-packet-ms", type=_positive, default=1000.0, metavar="MS", help="slowest first packet (default 1000)"
    )
    p.add_argument("--gaps", type=int, default=0, metavar="N", help="most gaps (default 0)")
    p.add_argument(
        "--words",
        type=float,
        default=0.6,
        metavar="SHARE",
        help="fewest words that the recogniser understands, where the extra [recogniser] is installed (default 0.6)",
    )
    _add_json(p)


def _add_conformance(commands: argparse._SubParsersAction[_Parser]) -> None:
    p = _add(
        commands,
        "conformance",
        delegated("talkspurt.conformance.command"),
        "play the gateway against a dialogue application, and say what that does wrong",
        "talkspurt conformance ws://127.0.0.1:8081/relay\n"
        "talkspurt conformance wss://bot.example.com/relay --sign-with TWILIO_AUTH_TOKEN --json",
    )
    p.add_argument("url", metavar="URL", help="the application's WebSocket, ws:// or wss://")
    p.add_argument(
        "--prompt", metavar="T", default="Hello, can you hear me?", help="what the caller says (default: %(default)s)"
    )
    p.add_argument(
        "--long-prompt",
        metavar="T",
        default="Please tell me a long story.",
        help="what the caller says to get an answer that can be interrupted (default: %(default)s)",
    )
    p.add_argument(
        "--wait",
        type=float,
        default=10.0,
        metavar="S",
        help="longest wait for the connection, and for the beginning and the end of an answer, seconds (default 10)",
    )
    p.add_argument(
        "--quiet",
        type=float,
        default=1.5,
        metavar="S",
        help="how long to listen for what should not come, and for a greeting, seconds (default 1.5)",
    )
    p.add_argument(
        "--header", metavar="'NAME: VALUE'", action="append", default=[], help="request header of the connection"
    )
    p.add_argument("--sign-with", metavar="ENV", help="environment variable with the key of X-Twilio-Signature")
    _add_json(p)


def _add_bench(commands: argparse._SubParsersAction[_Parser]) -> None:
    p = _add(
        commands,
        "bench",
        delegated("talkspurt.bench.command"),
        "put load on a part and measure it from outside",
        "talkspurt bench call --calls 1,10,50 --json result.json\ntalkspurt bench gateway --calls 300 --seconds 20\n"
        "talkspurt bench gateway --transport webrtc",
    )
    p.add_argument("what", choices=("gateway", "engine", "call"), help="which part")
    p.add_argument(
        "--calls",
        metavar="N",
        help="calls at a time; several steps with commas (default 1,10,50; gateway 300; engine 1,8,32)",
    )
    p.add_argument("--rate", type=float, metavar="RPS", help="turns per second over all calls, as they come (Poisson)")
    p.add_argument("--seconds", type=float, metavar="S", help="length of a step (default 30; gateway and engine 20)")
    p.add_argument("--burst", action="store_true", help="call: all calls speak in one instant, again and again")
    p.add_argument("--idle", action="store_true", help="gateway: silent calls")
    p.add_argument(
        "--search",
        action="store_true",
        help="gateway: try more and fewer calls than --calls, until the most are found that pass: no gap, no error, "
        "pacing error p99 within 5 ms",
    )
    p.add_argument(
        "--transport",
        choices=("twilio", "webrtc"),
        default="twilio",
        help="gateway: what carries the calls; webrtc compares with plain aiortc (default twilio)",
    )
    p.add_argument(
        "--uplink",
        action=argparse.BooleanOptionalAction,
        help="send the caller's audio as carriers do (default: on for call, off for gateway)",
    )
    p.add_argument(
        "--tokens-per-s", type=float, default=40.0, metavar="N", help="how fast text streams in; 0: whole (default 40)"
    )
    p.add_argument(
        "--cancel-share",
        type=float,
        default=0.0,
        metavar="X",
        help="share of turns cancelled in mid-speech (default 0)",
    )
    p.add_argument(
        "--load", type=Path, metavar="FILE", help="turns to speak, a JSON object a line (default: the standard load)"
    )
    p.add_argument("--server", metavar="HOST:PORT", help="measure this one instead of starting one (route `bench`)")
    _add_config(p)
    p.add_argument("--json", metavar="FILE", help="write the result as one JSON object; - for standard output")


def _add_voices(commands: argparse._SubParsersAction[_Parser]) -> None:
    p = _add(commands, "voices", None, "the voice registry", "talkspurt voices list --json")
    sub = p.add_subparsers(metavar="COMMAND", required=True)
    run = delegated("talkspurt.commands.voices")
    p = _add(sub, "list", run, "all voices", "talkspurt voices list --json")
    _add_voices_options(p, "list")
    p = _add(
        sub,
        "add",
        run,
        "register a voice from a recording and what is said in it",
        'talkspurt voices add anna anna.wav --transcript "Hello, this is Anna."',
    )
    p.add_argument("voice_id", metavar="ID", help="new voice id")
    p.add_argument("file", metavar="FILE", type=Path, help="recording of 1 to 30 s: wav, mp3, ogg, flac, m4a or webm")
    p.add_argument("--transcript", required=True, metavar="TEXT", help="what is said in the recording")
    p.add_argument("--name", default="", metavar="NAME", help="name to show (default: the id)")
    p.add_argument("--language", default="", metavar="TAG", help="BCP 47 tag of the recording")
    _add_voices_options(p, "add")
    p = _add(
        sub,
        "install",
        delegated("talkspurt.commands.voices_install"),
        "copy Kokoro's voices of a language from an unpacked kokoro-js 1.2.1",
        "talkspurt voices install es --from package",
    )
    p.add_argument("language", metavar="LANGUAGE", help="en, es, pt or zh")
    p.add_argument(
        "--from", dest="source", required=True, metavar="DIR", type=Path, help="folder that npm pack's archive makes"
    )
    p.add_argument(
        "--to", metavar="DIR", type=Path, help="folder of voices (default: the configured one, else ./kokoro-voices)"
    )
    _add_config(p)
    p = _add(sub, "show", run, "one voice", "talkspurt voices show heart")
    p.add_argument("voice_id", metavar="ID")
    _add_voices_options(p, "show")
    p = _add(sub, "remove", run, "remove a registered voice", "talkspurt voices remove anna")
    p.add_argument("voice_id", metavar="ID")
    _add_voices_options(p, "remove")


def _add_voices_options(p: argparse.ArgumentParser, action: str) -> None:
    p.set_defaults(action=action)
    p.add_argument(
        "--engine",
        type=_engine_address,
        metavar="TARGET",
        help="gRPC address of a running engine (default: the configured voices)",
    )
    _add_config(p)
    _add_json(p)


def _add_keys(commands: argparse._SubParsersAction[_Parser]) -> None:
    example = "talkspurt keys create -c server.yaml --tenant shop --scope speak --scope calls --days 90"
    p = _add(commands, "keys", None, "API keys of tenants, in auth.keys_file", example)
    sub = p.add_subparsers(metavar="COMMAND", required=True)
    run = delegated("talkspurt.commands.keys")
    p = _add(sub, "create", run, "make a key and print it, once", example)
    p.add_argument("--tenant", type=_text, default="default", metavar="T", help="whose key it is (default: default)")
    p.add_argument(
        "--scope",
        action="append",
        choices=("speak", "calls", "supervise", "read", "browser", "admin"),
        help="what it may do, several times for several scopes (default: as for auth.api_keys)",
    )
    p.add_argument("--days", type=_positive, metavar="N", help="how long it is good (default: until it is revoked)")
    p.add_argument("--name", default="", metavar="NAME", help="what it is for")
    _add_keys_options(p, "create")
    _add_keys_options(
        _add(sub, "list", run, "all keys, without what was printed", "talkspurt keys list --json"), "list"
    )
    p = _add(
        sub,
        "revoke",
        run,
        "refuse a key for good; servers that run notice it within two seconds",
        "talkspurt keys revoke 0a1b2c3d4e5f -c server.yaml",
    )
    p.add_argument("id", metavar="ID", help="the twelve characters after tsk_, as `list` shows them")
    _add_keys_options(p, "revoke")


def _add_keys_options(p: argparse.ArgumentParser, action: str) -> None:
    p.set_defaults(action=action)
    p.add_argument("--keys-file", metavar="FILE", help="file of keys (default: auth.keys_file of the configuration)")
    _add_config(p)
    _add_json(p)


def _add_recording(commands: argparse._SubParsersAction[_Parser]) -> None:
    example = "TALKSPURT__RECORDING__ENCRYPT=$RECORDING_KEY talkspurt recording decrypt recordings/VX01.wav.enc"
    p = _add(commands, "recording", None, "open encrypted recordings", example)
    sub = p.add_subparsers(metavar="COMMAND", required=True)
    p = _add(
        sub,
        "decrypt",
        delegated("talkspurt.commands.recordings"),
        "write an encrypted recording as WAV; the key is recording.encrypt",
        example,
    )
    p.add_argument("file", metavar="FILE", type=Path, help="encrypted recording")
    p.add_argument("-o", "--output", metavar="FILE", type=Path, help="new WAV file (default: FILE without .enc)")
    _add_config(p)


def _add_config_commands(commands: argparse._SubParsersAction[_Parser]) -> None:
    p = _add(commands, "config", None, "check and explain configuration files", "talkspurt config check talkspurt.yaml")
    sub = p.add_subparsers(metavar="COMMAND", required=True)
    p = _add(
        sub,
        "init",
        delegated("talkspurt.commands.config_init"),
        "write a commented configuration to begin with",
        "talkspurt config init laptop\ntalkspurt config init twilio -o twilio.yaml",
    )
    p.add_argument(
        "profile",
        choices=("laptop", "twilio", "sip", "freeswitch", "gpu"),
        help="a bot on this machine, a number at Twilio, a SIP trunk, FreeSWITCH, or CosyVoice on a GPU",
    )
    p.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("talkspurt.yaml"),
        metavar="FILE",
        help="new file (talkspurt.yaml); it may hold secrets, so only its owner reads it",
    )
    p = _add(
        sub,
        "check",
        config_check,
        "report everything that is wrong, with its line",
        "talkspurt config check talkspurt.yaml",
    )
    p.add_argument("file", metavar="FILE", type=Path)
    p = _add(
        sub,
        "show",
        config_show,
        "print the effective configuration, secrets masked",
        "TALKSPURT__SERVER__PORT=9000 talkspurt config show talkspurt.yaml",
    )
    p.add_argument("file", metavar="FILE", type=Path, nargs="?")
    _add_config(p)
    _add(
        sub,
        "schema",
        config_schema,
        "print the JSON Schema, for editors",
        "talkspurt config schema > talkspurt.schema.json",
    )
    _add(
        sub,
        "reference",
        config_reference,
        "print every key with its meaning, as Markdown",
        "talkspurt config reference > docs/configuration.md",
    )


def _add(
    commands: argparse._SubParsersAction[_Parser], name: str, run: Command | None, does: str, examples: str
) -> _Parser:
    p = commands.add_parser(
        name,
        help=does,
        description=does[0].upper() + does[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.set_defaults(run=run, prog=p.prog)
    return p


def _add_config(p: argparse.ArgumentParser) -> None:
    p.add_argument("-c", "--config", type=Path, metavar="FILE", help="configuration file (default: built-in defaults)")


def _add_serve_port(p: argparse.ArgumentParser) -> None:
    p.add_argument("--port", type=_port, metavar="N", help="TCP port instead of server.port; 0 takes a free one")


def _add_json(p: argparse.ArgumentParser) -> None:
    p.add_argument("--json", action="store_true", help="print the result as one JSON object")


def _text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("expected a name, got nothing")
    return text


def _engine_address(text: str) -> str:
    if not text.startswith("unix:/") and not text.rpartition(":")[2].isdigit():
        raise argparse.ArgumentTypeError(f"expected host:port or unix:/path, got {text!r}")
    return text


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"expected a number of more than 0 and less than 1,000,000, got {text!r}")
    return number


def _port(text: str) -> str:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"expected 0 to 65535, got {text!r}")
    return text
