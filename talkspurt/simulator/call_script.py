"""The steps of a simulated caller: the YAML of ``talkspurt call --script``. Pure.

- expect: {speech_ms: 3000}    # something audible within 3 s
- wait: 800                    # milliseconds
- say: question.wav            # a file beside the script
- dtmf: "12#"
- text: "Hello."               # as the dialogue manager of the call
- cancel: true                 # as the dialogue manager: stop speaking
- expect: {clear_ms: 500}      # a clear since the previous step
- expect: {quiet_ms: 20000}    # everything that is being said ends
- expect: {hang_up_ms: 5000}   # the other side closes
- hang_up: true
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml


class CallScriptError(ValueError):
    """The script cannot be read. The message says in which step, and what was expected."""


@dataclass(frozen=True, slots=True)
class Wait:
    ms: float


@dataclass(frozen=True, slots=True)
class SayStep:
    """Speak a WAV file."""

    wav: Path


@dataclass(frozen=True, slots=True)
class Press:
    digits: str


@dataclass(frozen=True, slots=True)
class TextStep:
    """A turn of the dialogue manager."""

    text: str


@dataclass(frozen=True, slots=True)
class CancelStep:
    """The dialogue manager cuts the turn."""


What = Literal["speech", "quiet", "clear", "hang_up"]


@dataclass(frozen=True, slots=True)
class Expect:
    what: What
    within_ms: float


@dataclass(frozen=True, slots=True)
class HangUpStep:
    pass


Step = Wait | SayStep | Press | TextStep | CancelStep | Expect | HangUpStep


def check_digits(digits: str) -> str:
    """Return the digits if a telephone can send them.

    Raises:
        CallScriptError: a telephone has no such key.
    """
    if not digits or set(digits) - set("0123456789*#"):
        raise CallScriptError(f"digits have to be 0-9, * and #, and at least one; got {len(digits)} characters")
    return digits


def read_script(path: Path) -> list[Step]:
    """Read the steps of a script file.

    Raises:
        CallScriptError: the file is not YAML, or a step is none of those above.
    """
    try:
        body = yaml.safe_load(path.read_text())
    except OSError as exc:
        raise CallScriptError(f"cannot read {path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise CallScriptError(f"{path} is not YAML: {exc}") from exc
    if not isinstance(body, list) or not body:
        raise CallScriptError(f"{path} has to be a list of steps, got {type(body).__name__}")
    steps = []
    for number, entry in enumerate(body, 1):
        try:
            steps.append(_step(entry, path.parent))
        except CallScriptError as exc:
            raise CallScriptError(f"{path}, step {number}: {exc}") from exc
    return steps


def _step(entry: Any, folder: Path) -> Step:
    if not isinstance(entry, dict) or len(entry) != 1:
        raise CallScriptError("a step is one key with its value, such as 'wait: 500'")
    ((verb, value),) = entry.items()
    match verb, value:
        case "wait", int() | float():
            return Wait(_positive(value))
        case "say", str():
            return SayStep(folder / value)
        case "dtmf", str() | int():
            return Press(check_digits(str(value)))
        case "text", str():
            return TextStep(value)
        case "cancel", True:
            return CancelStep()
        case "hang_up", True:
            return HangUpStep()
        case "expect", {**one} if len(one) == 1:
            ((name, within),) = one.items()
            what = str(name).removesuffix("_ms")
            if f"{what}_ms" != name or what not in get_args(What):
                raise CallScriptError(f"expect knows {[f'{w}_ms' for w in get_args(What)]}, got {name!r}")
            if not isinstance(within, int | float):
                raise CallScriptError(f"expect.{name} has to be milliseconds, got {type(within).__name__}")
            return Expect(what, _positive(within))  # type: ignore[arg-type]  # checked against What above
    raise CallScriptError(
        f"unknown step or wrong value: {verb!r} with {type(value).__name__}; see talkspurt call --help"
    )


def _positive(value: float) -> float:
    if not 0 <= value <= 3_600_000:
        raise CallScriptError(f"{value} ms is not between 0 and an hour")
    return float(value)
