"""The script dialogue: steps of a YAML file, and the machine that runs them (docs/script.md). Pure except for ``load``.

``ScriptMachine`` takes the place of a dialogue manager: it receives the gateway's messages and returns a manager's
messages. Its clock is an argument. The machine continues with the next action while it speaks; it waits only in
``gather``, ``pause``, ``mark`` and ``transfer``. Waiting times count from the end of the current speech.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, model_validator

from gateway.config import Section
from gateway.errors import GatewayError, did_you_mean
from gateway.seams.messages import (
    BothSilent,
    Cancel,
    Dtmf,
    End,
    Error,
    Inbound,
    Info,
    Interruptible,
    Mark,
    MarkReached,
    Outbound,
    Play,
    Prompt,
    SendDigits,
    Setup,
    Text,
    Transfer,
    TransferMode,
    TurnEvent,
    Withdrawn,
)

ACTIONS_AT_ONCE = 50
"""Most actions without a wait between them. More must be a loop of ``goto``, which ends the call."""

GATHER_DIGITS = 32
"""Default ``max_digits`` of a ``gather`` without branches."""


class ScriptError(GatewayError):
    """A script file cannot be used. The message lists every problem with its line."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"{place}: {message}" for place, message in problems))
        self.problems = problems


_DIGIT_WORDS = {
    word: str(digit) for digit, word in enumerate("zero one two three four five six seven eight nine".split())
}
_DIGIT_WORDS |= {"oh": "0", "o": "0", "nought": "0", "niner": "9"}


def spoken_digits(words: str) -> str:
    """Return the digits in English words, in order: ``"My number is 47, one oh."`` gives ``4710``."""
    found = re.findall(r"\d|[a-z]+", words.lower())
    return "".join(word if word.isdigit() else _DIGIT_WORDS.get(word, "") for word in found)


# --- the file ------------------------------------------------------------------------------------------------------

_VARIABLE = re.compile(r"\{(?P<name>\w+)(?P<spaced>:spaced)?(?:\|(?P<default>[^{}]*))?\}")


def _template(text: str) -> str:
    rest = _VARIABLE.sub("", text)
    if "{" in rest or "}" in rest:
        raise ValueError("a brace is not part of a variable, expected {name}, {name:spaced} or {name|default}")
    return text


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as exc:
        raise ValueError(f"not a regular expression: {exc}") from exc
    return text


def _zone(name: str) -> str:
    try:
        if name:
            ZoneInfo(name)
    except (OSError, ValueError, KeyError) as exc:  # ZoneInfoNotFoundError is a KeyError
        raise ValueError(f"unknown time zone {name!r}, expected a name like Europe/Berlin") from exc
    return name


def _short(field: str) -> BeforeValidator:
    """Return a validator that takes a plain value for a section in which only ``field`` is set."""
    return BeforeValidator(lambda value: value if isinstance(value, dict | BaseModel) else {field: value})


Template = Annotated[str, AfterValidator(_template)]
"""Text with variables: ``{name}``, ``{name:spaced}`` (character by character), ``{name|text if name is empty}``."""


class Say(Section):
    """Speak."""

    text: Template
    voice: str = ""
    lang: str = ""
    interruptible: Interruptible | None = None


class PlayClip(Section):
    """Play an audio file."""

    source: Template = Field(min_length=1)
    loop: int = Field(1, ge=0, le=1000)
    interruptible: Interruptible | None = None


class WordsBranch(Section):
    """A branch for words of the caller."""

    match: Annotated[str, AfterValidator(_expression)] = Field(min_length=1)
    goto: str


class Gather(Section):
    """Wait for keys or words of the caller."""

    say: Template = ""
    timeout_s: float = Field(6.0, gt=0, le=600)
    digit_timeout_s: float = Field(3.0, gt=0, le=60)
    min_digits: int = Field(1, ge=1, le=64)
    max_digits: int | None = Field(None, ge=1, le=64)
    terminator: Annotated[str, Field(pattern=r"^[0-9A-D*#]?$")] = "#"
    retries: int = Field(2, ge=0, le=10)
    retry: Template = ""
    not_understood: Template = ""
    variable: Annotated[str, Field(pattern=r"^\w+$")] = "digits"
    digits: dict[Annotated[str, Field(pattern=r"^[0-9A-D*#]{1,64}$")], str] = {}
    prompts: tuple[WordsBranch, ...] = ()
    spoken_digits: bool = False
    otherwise: str = ""

    @property
    def digits_wanted(self) -> int:
        """The number of keys that completes the input."""
        return self.max_digits or max(map(len, self.digits), default=GATHER_DIGITS)

    @property
    def takes_words(self) -> bool:
        """True if the caller's words count as input."""
        return bool(self.prompts) or self.spoken_digits


class TransferTo(Section):
    """Transfer the call."""

    target: Template = Field(min_length=1)
    handoff_data: Template | None = None
    commit: bool = False
    mode: TransferMode = "auto"


class HangUp(Section):
    """End the call after all speech before this action has been spoken."""

    handoff_data: Template | None = None
    commit: bool = False


class Action(Section):
    """One action of a step; exactly one of these keys is set."""

    say: Annotated[Say, _short("text")] | None = None
    play: Annotated[PlayClip, _short("source")] | None = None
    gather: Gather | None = None
    pause: Annotated[float, Field(gt=0, le=600)] | None = None
    mark: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    send_digits: Annotated[str, Field(pattern=r"^[0-9A-D*#w]{1,256}$")] | None = None
    set: dict[Annotated[str, Field(pattern=r"^\w+$")], Template] | None = None
    goto: str | None = None
    transfer: Annotated[TransferTo, _short("target")] | None = None
    hang_up: HangUp | None = None

    @model_validator(mode="before")
    @classmethod
    def _single_action(cls, value: Any) -> Any:
        if value == "hang_up" or value == {"hang_up": None}:
            return {"hang_up": {}}
        if not isinstance(value, dict) or len(value) != 1:
            near = did_you_mean(value, cls.model_fields) if isinstance(value, str) else ""
            raise ValueError(f"expected one action, one of {', '.join(cls.model_fields)}{near}")
        name, content = next(iter(value.items()))
        if content is None:
            raise ValueError(f"{name} is empty")
        return value


class Script(Section):
    """A script file."""

    start: str = ""
    timezone: Annotated[str, AfterValidator(_zone)] = ""
    steps: dict[str, tuple[Action, ...]] = Field(min_length=1)

    @property
    def first(self) -> str:
        """The first step of a call."""
        return self.start or next(iter(self.steps))


def load(path: str | Path) -> Script:
    """Read and check a script file.

    Raises:
        ScriptError: lists all problems at once, each with its line.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ScriptError([(str(path), f"cannot be read: {exc}")]) from exc
    return parse(text, str(path))


def parse(text: str, name: str) -> Script:
    """Check a script in ``text``. Messages give ``name`` as the file."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        line = f"{name}:{mark.line + 1}" if mark else name
        raise ScriptError([(line, f"not YAML: {getattr(exc, 'problem', None) or exc}")]) from exc
    except RecursionError as exc:
        raise ScriptError([(name, "nested too deeply")]) from exc
    if not isinstance(node, yaml.MappingNode):
        raise ScriptError([(f"{name}:1", "expected `steps:` at the top level")])
    lines: dict[tuple[str | int, ...], int] = {}
    problems: list[tuple[tuple[str | int, ...], str]] = []
    data = _plain(node, (), lines, problems)
    if not problems:
        try:
            script = Script.model_validate(data)
            problems = list(_wrong_keys(script))
        except ValidationError as exc:
            problems = [
                (error["loc"], _error_text(error["type"], error["loc"], error["msg"])) for error in exc.errors()
            ]
        told = {at for at, _ in problems}
        problems += [problem for problem in _missing_steps(data) if problem[0] not in told]
        problems.sort(key=lambda problem: _line(lines, problem[0]))
    if problems:
        raise ScriptError([(f"{name}:{_line(lines, at)}", f"{_dotted(at)}{message}") for at, message in problems])
    return script


def _plain(
    node: yaml.Node,
    at: tuple[str | int, ...],
    lines: dict[tuple[str | int, ...], int],
    problems: list[tuple[tuple[str | int, ...], str]],
) -> Any:
    """Return a node's data and record the line of each value. Scalars stay as written; the models convert them."""
    lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        empty = node.style is None and node.value in ("", "~", "null")
        return None if empty else node.value
    if len(at) > 12:  # only an anchor that contains itself is nested so deeply
        problems.append((at, "nested too deeply"))
        return None
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*at, number), lines, problems) for number, item in enumerate(node.value)]
    found: dict[str, Any] = {}
    for key, value in node.value:
        here = (*at, str(key.value))
        lines.setdefault(here, key.start_mark.line + 1)
        if not isinstance(key, yaml.ScalarNode):
            problems.append((at, "a key must be a word"))
        elif key.value in found:
            problems.append((here, f"is repeated, first in line {lines[here]}"))
        else:
            found[key.value] = _plain(value, here, lines, problems)
    return found


def _missing_steps(data: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield references to steps that do not exist. ``data`` may have other mistakes, and these hide none."""
    steps = data.get("steps")
    names = list(steps) if isinstance(steps, dict) else []

    def check(step: Any, at: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if isinstance(step, str) and step and step not in names:
            yield at, f"no step {step!r}{did_you_mean(step, names)}"

    def references(value: Any, at: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
        entries: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, dict):
            entries = value.items()
        elif isinstance(value, list):
            entries = enumerate(value)
        for key, inner in entries:
            here = (*at, key)
            if key in ("goto", "otherwise"):
                yield from check(inner, here)
            elif key == "digits" and isinstance(inner, dict):
                for digits, target in inner.items():
                    yield from check(target, (*here, digits))
            elif key != "set":
                yield from references(inner, here)

    yield from check(data.get("start"), ("start",))
    if isinstance(steps, dict):
        for name, actions in steps.items():
            yield from references(actions, ("steps", name))


def _wrong_keys(script: Script) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield branches of a ``gather`` that no input of the caller can take."""
    for name, actions in script.steps.items():
        for number, action in enumerate(actions):
            gather = action.gather
            if gather is None:
                continue
            for digits in gather.digits:
                at = ("steps", name, number, "gather", "digits", digits)
                if gather.max_digits is not None and len(digits) > gather.max_digits:
                    yield at, f"longer than max_digits ({gather.max_digits})"
                if gather.terminator and gather.terminator in digits and digits != gather.terminator:
                    yield at, f"contains the terminator {gather.terminator!r}"


_KEYS = [
    name for model in (Script, Action, Say, PlayClip, Gather, WordsBranch, TransferTo) for name in model.model_fields
]


def _error_text(kind: str, at: tuple[str | int, ...], message: str) -> str:
    if kind == "extra_forbidden":
        return f"unknown key{did_you_mean(str(at[-1]), _KEYS)}"
    return message.removeprefix("Value error, ")


def _line(lines: Mapping[tuple[str | int, ...], int], at: tuple[str | int, ...]) -> int:
    while at not in lines:
        at = at[:-1]
    return lines[at]


def _dotted(at: tuple[str | int, ...]) -> str:
    return f"{'.'.join(str(part) for part in at)}: " if at else ""


# --- the machine ---------------------------------------------------------------------------------------------------


class _Wait(Enum):
    """The event that the script waits for."""

    NOTHING = auto()
    GATHER = auto()
    PAUSE = auto()
    MARK = auto()
    TRANSFER = auto()
    OVER = auto()


@dataclass(frozen=True, slots=True)
class _Answer:
    """The words that a gather took, and the machine's state before. The caller may continue the words later
    (``continues``)."""

    words: str
    gather: Gather
    step: str
    next: int
    tries: int
    variables: dict[str, str]
    speaking: frozenset[str]


class ScriptMachine:
    """One call's run of a script. ``start`` and the ``on_…`` methods return the messages that the manager sends now.

    Args:
        setup: the call; its fields and custom parameters are variables.
        clock: wall clock for ``{time}`` and ``{date}``; called with the script's time zone, None for the machine's.

    ``now`` is seconds on any monotonic clock.
    """

    def __init__(self, script: Script, setup: Setup, *, clock: Callable[[ZoneInfo | None], datetime]) -> None:
        self._script = script
        self._clock = clock
        self._zone = ZoneInfo(script.timezone) if script.timezone else None
        self._variables: dict[str, str] = {
            "from": setup.from_,
            "to": setup.to,
            "callerName": setup.caller_name,
            "callSid": setup.call_sid,
            "sessionId": setup.session_id,
            **setup.custom_parameters,
        }
        self._step = script.first
        self._next = 0
        self._wait = _Wait.NOTHING
        self._deadline: float | None = None
        self._delay_s = 0.0
        self._speaking: set[str] = set()
        self._caller_speaks = False
        self._turns = 0
        self._mark = ""
        self._gather = Gather()
        self._collected = ""
        self._tries = 0
        self._leaves_at = 0
        """Index of the action that is next if the caller has withdrawn the latest end or transfer."""
        self._withdrawn = False
        """True while the script waits for the caller who has withdrawn it."""
        self._answer: _Answer | None = None
        """The gather that the latest final prompt answered. None: no gather took it, or a key came since."""

    @property
    def over(self) -> bool:
        """True if the script has ended the call."""
        return self._wait is _Wait.OVER

    def deadline(self) -> float | None:
        """Return the time of the next ``on_timer``. None: only another event can change something."""
        return self._deadline

    def start(self, now: float) -> list[Inbound]:
        return list(self._run_actions(now))

    def on_timer(self, now: float) -> list[Inbound]:
        if self._deadline is None or now < self._deadline:
            return []
        self._deadline = None
        if self._wait is _Wait.GATHER:
            return list(self._input_complete(now))
        if self._wait is _Wait.PAUSE:
            return list(self._run_actions(now))
        return []

    def on_message(self, message: Outbound, now: float) -> list[Inbound]:
        match message:
            case Dtmf(digit=digit):
                self._answer = None
                return list(self._key(digit, now)) if self._wait is _Wait.GATHER else []
            case Prompt(last=True):
                return list(self._take_utterance(message, now))
            case Info(name="clientSpeaking", value=value):
                self._caller_speaks = value == "on"
                self._restart_timer(now)
            case MarkReached(name=name) if self._wait is _Wait.MARK and name == self._mark:
                return list(self._run_actions(now))
            case TurnEvent(turn=turn, event="finished" | "interrupted" | "failed"):
                self._turn_ended(turn, now)
            case BothSilent() if self._wait is _Wait.GATHER:
                return list(self._input_complete(now))
            case Withdrawn() if self._wait in (_Wait.TRANSFER, _Wait.OVER):
                self._hear_out(now)
            case Error(turn="") if self._wait is _Wait.TRANSFER:
                return list(self._run_actions(now))
            case Error(turn=turn):
                self._turn_ended(turn, now)
        return []

    # --- actions -----------------------------------------------------------------------------------------------------

    def _run_actions(self, now: float) -> Iterator[Inbound]:
        """Run actions until one waits."""
        self._wait, self._deadline, self._withdrawn = _Wait.NOTHING, None, False
        for _ in range(ACTIONS_AT_ONCE):
            actions = self._script.steps[self._step]
            if self._next >= len(actions):
                break
            action = actions[self._next]
            self._next += 1
            yield from self._run_action(action, now)
            if self._wait is not _Wait.NOTHING:
                return
        self._wait, self._leaves_at = _Wait.OVER, self._next
        yield End()

    def _run_action(self, action: Action, now: float) -> Iterator[Inbound]:
        if action.say is not None:
            say = action.say
            yield from self._say(say.text, voice=say.voice, lang=say.lang, interruptible=say.interruptible)
        elif action.play is not None:
            play = action.play
            source, turn = self._with_variables(play.source), self._turn()
            yield Play(source=source, loop=play.loop, interruptible=play.interruptible, turn=turn)
        elif action.gather is not None:
            self._gather, self._tries = action.gather, action.gather.retries
            yield from self._prompt_caller(now)
        elif action.pause is not None:
            self._wait_after_speech(_Wait.PAUSE, action.pause, now)
        elif action.mark is not None:
            self._wait, self._mark = _Wait.MARK, action.mark
            yield Mark(name=action.mark)
        elif action.send_digits is not None:
            yield SendDigits(digits=action.send_digits)
        elif action.set is not None:
            for name, value in action.set.items():
                self._variables[name] = self._with_variables(value)
        elif action.goto is not None:
            self._jump(action.goto)
        elif action.transfer is not None:
            self._wait, self._leaves_at = _Wait.TRANSFER, self._next - 1
            target, handoff_data = (
                self._with_variables(action.transfer.target),
                self._optional(action.transfer.handoff_data),
            )
            yield Transfer(
                target=target,
                handoff_data=handoff_data,
                commit=action.transfer.commit,
                mode=action.transfer.mode,
            )
        elif action.hang_up is not None:
            self._wait, self._leaves_at = _Wait.OVER, self._next - 1
            yield End(handoff_data=self._optional(action.hang_up.handoff_data), commit=action.hang_up.commit)

    def _jump(self, step: str) -> None:
        self._step, self._next = step, 0

    def _say(
        self, text: str, *, voice: str = "", lang: str = "", interruptible: Interruptible | None = None
    ) -> Iterator[Inbound]:
        token = self._with_variables(text)
        if token.strip():
            yield Text(token=token, last=True, voice=voice, lang=lang, interruptible=interruptible, turn=self._turn())

    def _turn(self) -> str:
        self._turns += 1
        turn = f"s{self._turns}"
        self._speaking.add(turn)
        return turn

    def _wait_after_speech(self, wait: _Wait, delay_s: float, now: float) -> None:
        """Wait for ``delay_s`` seconds after the end of the current speech."""
        self._wait, self._delay_s = wait, delay_s
        self._restart_timer(now)

    def _restart_timer(self, now: float) -> None:
        """Set the timer again. Waiting times do not run while either side speaks."""
        if self._wait in (_Wait.GATHER, _Wait.PAUSE):
            self._deadline = None if self._speaking or self._caller_speaks else now + self._delay_s

    def _turn_ended(self, turn: str, now: float) -> None:
        if turn in self._speaking:
            self._speaking.discard(turn)
            if not self._speaking and self._deadline is None:
                self._restart_timer(now)

    # --- gather ------------------------------------------------------------------------------------------------------

    def _prompt_caller(self, now: float) -> Iterator[Inbound]:
        self._collected = ""
        yield from self._say(self._gather.say)
        self._wait_after_speech(_Wait.GATHER, self._gather.timeout_s, now)

    def _hear_out(self, now: float) -> None:
        """Wait for the caller who has withdrawn an end or a transfer. Branches of the latest gather are followed; after
        its ``timeout_s`` of silence the script leaves as before."""
        self._gather = self._gather.model_copy(
            update={"otherwise": "", "spoken_digits": False, "variable": "", "min_digits": 1}
        )
        self._tries, self._collected, self._next = 0, "", self._leaves_at
        self._withdrawn = True
        self._wait_after_speech(_Wait.GATHER, self._gather.timeout_s, now)

    def _key(self, digit: str, now: float) -> Iterator[Inbound]:
        gather = self._gather
        if digit == gather.terminator and digit not in gather.digits:
            yield from self._input_complete(now)
            return
        self._collected += digit
        self._variables["prompt"] = ""  # earlier words of the caller must not count for this input
        longer = any(key != self._collected and key.startswith(self._collected) for key in gather.digits)
        if len(self._collected) >= gather.digits_wanted or (self._collected in gather.digits and not longer):
            yield from self._input_complete(now)
        else:
            self._deadline = now + gather.digit_timeout_s

    def _input_complete(self, now: float) -> Iterator[Inbound]:
        """Handle the input: the keys are complete, or the time is up."""
        gather = self._gather
        self._variables[gather.variable] = self._collected
        if self._collected in gather.digits:
            self._jump(gather.digits[self._collected])
            yield from self._run_actions(now)
        elif len(self._collected) >= gather.min_digits and not gather.digits:
            yield from self._run_actions(now)
        else:
            yield from self._ask_again(now, came=bool(self._collected))

    def _take_utterance(self, prompt: Prompt, now: float) -> Iterator[Inbound]:
        """Handle an utterance of the caller. If it continues the previous one, return to the gather that took the first
        half, cancel what was said since, and take both as one answer."""
        before, self._answer = self._answer, None
        words = prompt.voice_prompt
        if before is not None and prompt.continues and self._wait not in (_Wait.TRANSFER, _Wait.OVER):
            words = f"{before.words} {words}"
            for turn in sorted(self._speaking - before.speaking):
                yield Cancel(turn=turn)
            self._speaking &= before.speaking
            self._gather, self._step, self._next, self._tries = before.gather, before.step, before.next, before.tries
            self._variables = dict(before.variables)
            self._wait, self._withdrawn = _Wait.GATHER, False
        if self._wait is _Wait.GATHER and (self._gather.takes_words or self._withdrawn):
            self._answer = _Answer(
                words, self._gather, self._step, self._next, self._tries, dict(self._variables),
                frozenset(self._speaking),
            )  # fmt: skip
            yield from self._words(words, now)

    def _words(self, words: str, now: float) -> Iterator[Inbound]:
        self._variables["prompt"] = words
        for candidate in self._gather.prompts:
            if re.search(candidate.match, words, re.IGNORECASE):
                self._jump(candidate.goto)
                yield from self._run_actions(now)
                return
        digits = spoken_digits(words) if self._gather.spoken_digits else ""
        if digits:
            self._collected = digits[: self._gather.digits_wanted]
            yield from self._input_complete(now)
        else:
            yield from self._ask_again(now, came=True)

    def _ask_again(self, now: float, *, came: bool) -> Iterator[Inbound]:
        """Repeat the question, or continue without input. ``came``: input came, but no branch matches it."""
        gather = self._gather
        if came and self._withdrawn:
            self._collected = ""
            self._restart_timer(now)
            return
        if self._tries:
            self._tries -= 1
            yield from self._say((came and gather.not_understood) or gather.retry)
            yield from self._prompt_caller(now)
            return
        if self._gather.otherwise:
            self._jump(self._gather.otherwise)
        yield from self._run_actions(now)

    # --- variables ------------------------------------------------------------------------------------------------

    def _optional(self, text: str | None) -> str | None:
        return None if text is None else self._with_variables(text)

    def _with_variables(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            known = self._value(found["name"]) or found["default"] or ""
            return " ".join(known) if found["spaced"] else known

        return _VARIABLE.sub(value, text)

    def _value(self, name: str) -> str:
        if name in self._variables:
            return self._variables[name]
        if name not in ("time", "date"):
            return ""
        now = self._clock(self._zone)
        if name == "date":
            return f"{now:%A, %B} {now.day}"
        return f"{now.hour % 12 or 12}:{now.minute:02} {'AM' if now.hour < 12 else 'PM'}"
