"""The steps of a simulated caller: the YAML of ``talkspurt call --script``. Pure. Times are seconds, as in a route's
script; ``STEPS`` describes them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

STEPS = """\
- expect: {speech_s: 3}     # something audible within 3 s
- pause: 0.8                # seconds
- say: question.wav         # a WAV file beside the script
- dtmf: "12#"
- text: "Hello."            # as the call's dialogue manager: a turn
- cancel: true              # as the dialogue manager: stop speaking
- expect: {clear_s: 0.5}    # the carrier was told to clear since the previous step
- expect: {quiet_s: 20}     # all that is being said ends
- expect: {hang_up_s: 5}    # the other side closes
- hang_up: true
"""
"""Every step, as a script."""
_VERBS = ("expect", "pause", "say", "dtmf", "text", "cancel", "hang_up")


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
        CallScriptError: the file is not YAML, or steps are none of those above; it names all of these.
    """
    try:
        body = yaml.safe_load(path.read_text())
    except OSError as exc:
        raise CallScriptError(f"cannot read {path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise CallScriptError(f"{path} is not YAML: {exc}") from exc
    if not isinstance(body, list) or not body:
        raise CallScriptError(f"{path} has to be a list of steps, got {type(body).__name__}")
    steps, problems = [], []
    for number, entry in enumerate(body, 1):
        try:
            steps.append(_step(entry, path.parent))
        except CallScriptError as exc:
            problems.append(f"{path}, step {number}: {exc}")
    if problems:
        raise CallScriptError("\n".join(problems))
    return steps


def _step(entry: Any, folder: Path) -> Step:
    if not isinstance(entry, dict) or len(entry) != 1:
        raise CallScriptError("a step is one key with its value, such as 'pause: 0.5'")
    ((verb, value),) = entry.items()
    match verb, value:
        case "pause", int() | float():
            return Wait(_ms(value))
        case "wait", int() | float():
            raise CallScriptError(
                f"'wait: {value:g}' counted milliseconds; write 'pause: {value / 1000:g}', in seconds"
            )
        case "say", str():
            if not (folder / value).is_file():
                raise CallScriptError(f"say: no such file: {folder / value}")
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
            what = str(name).removesuffix("_s")
            if str(name).endswith("_ms"):
                raise CallScriptError(f"expect.{name} counted milliseconds; write {str(name)[:-3]}_s, in seconds")
            if f"{what}_s" != name or what not in get_args(What):
                raise CallScriptError(f"expect knows {[f'{w}_s' for w in get_args(What)]}, got {name!r}")
            if not isinstance(within, int | float):
                raise CallScriptError(f"expect.{name} has to be seconds, got {type(within).__name__}")
            return Expect(what, _ms(within))  # type: ignore[arg-type]  # checked against What above
    near = [] if verb in _VERBS else difflib.get_close_matches(str(verb), _VERBS, 1)
    raise CallScriptError(
        f"unknown step or wrong value: {verb!r} with {type(value).__name__}"
        + (f", did you mean {near[0]!r}?" if near else "; see docs/simulated-calls.md")
    )


def _ms(seconds: float) -> float:
    if not 0 <= seconds <= 3600:
        raise CallScriptError(f"{seconds} s is not between 0 and an hour")
    return 1000.0 * seconds
