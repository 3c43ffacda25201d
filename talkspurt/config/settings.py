"""The configuration: every package's model under the name of its section, and how a file is read into it."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import yaml
from pydantic import BaseModel, StringConstraints, ValidationError, model_validator
from pydantic_core import ErrorDetails

from gateway.carriers.table import CarriersConfig
from gateway.config import (
    AudioSocketConfig,
    AuthConfig,
    BargeInConfig,
    CallingConfig,
    CallsConfig,
    ClipsConfig,
    DirectoryConfig,
    LimitsConfig,
    LogConfig,
    MetricsConfig,
    PlayoutConfig,
    PostgresConfig,
    RecogniserConfig,
    RecordingConfig,
    RecordsConfig,
    RouteConfig,
    Section,
    ServerConfig,
    TracingConfig,
    WebRtcConfig,
    is_loopback,
)
from gateway.dialogue.script import ScriptError
from gateway.dialogue.script import load as load_script
from sip_bridge.config import SipConfig
from sip_bridge.io.ports import share
from talkspurt import recognisers
from talkspurt.config import removed
from talkspurt.config.yaml_file import ConfigError, Document, Location, Problem, Value, parse, read
from tts_engine.config import EngineConfig
from tts_engine.embedded.voice_ids import voice_ids

OVERRIDE_PREFIX = "TALKSPURT__"

RouteName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""A route's name is part of addresses (`/media/twilio/{route}`) and metric labels."""


class Config(Section):
    """The whole file. Every section may be left out."""

    server: ServerConfig = ServerConfig()
    """The HTTP listener."""
    engine: EngineConfig = EngineConfig()
    """The voice model, and where it runs."""
    routes: dict[RouteName, RouteConfig] = {"default": RouteConfig()}
    """Treatment of calls, by the route name at the end of the address; `default` for an address without a name."""
    carriers: CarriersConfig = CarriersConfig()
    """Secrets and options per carrier."""
    calling: CallingConfig = CallingConfig()
    """Allowed targets and caller ids."""
    playout: PlayoutConfig = PlayoutConfig()
    """Pacing of frames."""
    barge_in: BargeInConfig = BargeInConfig()
    """Interruption by a caller who speaks over our voice."""
    recogniser: RecogniserConfig = RecogniserConfig()
    """Caller speech to text."""
    webrtc: WebRtcConfig = WebRtcConfig()
    """Calls from browsers."""
    sip: SipConfig | None = None
    """Calls by SIP and RTP. Without this section there is no SIP."""
    audiosocket: AudioSocketConfig | None = None
    """Calls from Asterisk over AudioSocket. Without this section there is no such listener."""
    recording: RecordingConfig = RecordingConfig()
    """Stereo recordings of calls."""
    calls: CallsConfig = CallsConfig()
    """The log of ended calls."""
    records: RecordsConfig = RecordsConfig()
    """Records of calls and requests."""
    postgres: PostgresConfig = PostgresConfig()
    """Database in which several gateways keep both together."""
    clips: ClipsConfig = ClipsConfig()
    """Sources of `play`."""
    auth: AuthConfig = AuthConfig()
    """Access to the console, the API and the metrics."""
    limits: LimitsConfig = LimitsConfig()
    """Bounds of everything that comes from outside."""
    directory: DirectoryConfig = DirectoryConfig()
    """Knowledge that several gateways share."""
    metrics: MetricsConfig = MetricsConfig()
    """Prometheus."""
    tracing: TracingConfig | None = None
    """A trace of each turn. Without this section there are none."""
    log: LogConfig = LogConfig()
    """Logging."""

    @model_validator(mode="after")
    def _safe(self) -> Config:
        server = self.server
        if server.public_url and server.insecure:
            raise ValueError(
                f"server.insecure: true opens `/`, `/v1` and `/metrics` to everybody who knows server.public_url "
                f"{server.public_url}: set auth.api_keys instead"
            )
        if server.public_url and is_loopback(server.host) and not self.auth.required:
            # A loopback listener asks for no key; with a public address a proxy leads strangers to it.
            raise ValueError(
                f"server.public_url {server.public_url} leads the outside to `/`, `/v1` and `/metrics`: "
                "set auth.api_keys"
            )
        reachable = bool(server.public_url) or not is_loopback(server.host)
        unchecked = [
            carrier.vendor.key for carrier in self.carriers.configured().values() if not carrier.settings.verify
        ]
        if unchecked and reachable:
            raise ValueError(
                f"carriers.{unchecked[0]}.verify is off while {server.public_url or server.host} can be reached from "
                "outside: leave it on, or take the carrier out of the configuration"
            )
        if self.directory.redis_url is not None and server.stream_token_secret is None:
            raise ValueError(
                "directory.redis_url wants server.stream_token_secret: with a random key each, no gateway knows the "
                "stream tokens of another"
            )
        if self.postgres.url is not None and not (self.calls.folder or self.records.database_url):
            raise ValueError(
                "postgres.url wants calls.folder or records.database_url, where what has ended waits for PostgreSQL"
            )
        limits = self.limits
        counted = limits.tenant.model_fields_set or limits.tenants
        if server.workers > 1 and counted and limits.redis_url is None:
            raise ValueError(
                f"server.workers is {server.workers}: the limits of tenants (limits.tenant, limits.tenants) want "
                "limits.redis_url, where the workers count together"
            )
        if self.sip is not None and server.workers > 1:
            try:
                share(*self.sip.rtp_range, server.workers)
            except ValueError as exc:
                raise ValueError(f"sip.rtp_ports is too small for server.workers: {exc}") from None
        engine = self.engine
        if engine.speech.max_chars < self.limits.turn_chars and not engine.elsewhere:
            # Engines that run elsewhere have a configuration of their own.
            raise ValueError(
                f"engine.speech.max_chars is {engine.speech.max_chars}, less than limits.turn_chars "
                f"({self.limits.turn_chars}): a turn that the gateway takes would fail in the engine"
            )
        for name, route in self.routes.items():
            if route.siprec.recorder and self.sip is None:
                raise ValueError(f"routes.{name}.siprec wants the section sip, by which its recorder is called")
            if route.recording and not self.recording.folder:
                raise ValueError(f"routes.{name}.recording is on, but recording.folder is empty")
            tenants = {key.tenant for key in self.auth.api_keys}
            if route.tenant and route.tenant not in tenants and not (self.auth.keys_file or self.auth.jwt):
                known = ", ".join(sorted(tenants)) or "there are no keys"
                raise ValueError(
                    f"routes.{name}.tenant is {route.tenant!r}, which no key of auth.api_keys has ({known})"
                )
        for name, trunk in (self.sip.trunks if self.sip else {}).items():
            for wanted in (trunk.route, *trunk.numbers.values()):
                if wanted not in self.routes:
                    raise ValueError(f"sip.trunks.{name} leads to route {wanted!r}, which routes lacks")
        if self.audiosocket is not None and self.audiosocket.route not in ("", *self.routes):
            raise ValueError(f"audiosocket.route is {self.audiosocket.route!r}, which is none of the routes")
        return self


def load(
    path: Path | None, *, environment: Mapping[str, str] | None = None, overrides: Mapping[str, str] | None = None
) -> Config:
    """Read a file (None: the defaults), apply the overrides of the environment and check the result.

    Args:
        path: YAML file. Paths in it are relative to its folder.
        environment: variables for ``${NAME}`` and ``TALKSPURT__SECTION__KEY``. Default: those of the process.
        overrides: overrides of the command line by dotted key: ``{"server.port": "0"}``. They come last.

    Raises:
        ConfigError: lists everything that is wrong, each with file and line, or variable.
    """
    environment = os.environ if environment is None else environment
    document = parse("", "configuration", environment) if path is None else read(path, environment)
    problems: list[Problem] = []
    for variable in sorted(name for name in environment if name.startswith(OVERRIDE_PREFIX)):
        keys = variable.removeprefix(OVERRIDE_PREFIX).lower().split("__")
        _override(document, keys, environment[variable], variable, problems)
    for dotted, text in (overrides or {}).items():
        _override(document, dotted.split("."), text, f"--{dotted.rpartition('.')[2]}", problems)
    if problems:
        raise ConfigError(problems)
    context = None if path is None else {"folder": str(path.parent)}
    try:
        config = Config.model_validate(document.root, context=context)
    except ValidationError as exc:
        raise ConfigError(_problems(exc, document)) from None  # the original error would print secrets
    checks = (_missing_files, _missing_recognisers, _missing_voices)
    if missing := [problem for check in checks for problem in check(config, document)]:
        raise ConfigError(missing)
    return config


def effective_yaml(config: Config) -> str:
    """Every key with its effective value, as YAML. Secrets, header values, passwords and queries in URLs are masked."""
    data = config.model_dump(mode="json")
    text = yaml.safe_dump(_masked(data), sort_keys=False, allow_unicode=True, width=120)
    text = re.sub(r"(://[^\s/:@]*):[^\s/@]+@", r"\1:**********@", text)
    return re.sub(r"(?<=[?&])([\w.~%-]+)=[^\s&#'\"]+", r"\1=**********", text)


# --- overrides ---------------------------------------------------------------------------------------------------


def _override(document: Document, keys: list[str], text: str, variable: str, problems: list[Problem]) -> None:
    """Put one value at ``keys``. Names match existing ones in any case, because variables are in capitals."""
    here: Value = document.root
    location: Location = ()
    for depth, name in enumerate(keys):
        step: str | int
        if isinstance(here, list) and name.isdigit() and int(name) < len(here):
            step = int(name)
        elif isinstance(here, dict):
            same = name.lower().replace("-", "_")
            step = next((key for key in here if key.lower().replace("-", "_") == same), name)
        else:
            problems.append(Problem(variable, f"{_dotted(location)} has no key {name!r}"))
            return
        location = (*location, step)
        if depth == len(keys) - 1:
            try:
                value = _typed(text, location, variable)
            except ConfigError as exc:
                problems.extend(Problem(variable, problem.message) for problem in exc.problems)
                return
            here[step] = value  # type: ignore[index]
        else:
            below = here[step] if isinstance(here, list) else here.setdefault(str(step), {})  # type: ignore[index]
            if below is None:
                below = here[step] = {}  # type: ignore[index]
            here = below
        document.places[location] = variable


def _typed(text: str, location: Location, variable: str) -> Value:
    """Return the text for a plain field. If the model has a list or section there, parse it as YAML (`[a, b]`)."""
    if not _is_container(_type_at(location)):
        return text
    return parse(f"value: {text}", variable, None).root.get("value", {})


# --- the models by path ------------------------------------------------------------------------------------------


def _type_at(location: Location) -> Any:
    """Return the annotation at a path of keys and indices. None: the models have nothing there."""
    here: Any = Config
    for step in location:
        here = _inner(here, step)
    return here


def _inner(annotation: Any, step: str | int) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        info = annotation.model_fields.get(str(step))
        return info.annotation if info else None
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _inner(arguments[0], step)
    if get_origin(annotation) is dict:
        return arguments[1]
    if get_origin(annotation) in (list, tuple):
        return arguments[0]
    return next((found for a in arguments if (found := _inner(a, step)) is not None), None)


def _is_container(annotation: Any) -> bool:
    if get_origin(annotation) in (dict, list, tuple):
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    return any(_is_container(argument) for argument in get_args(annotation))


def _known_keys(location: Location) -> list[str]:
    annotation = _type_at(location)
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return list(candidate.model_fields)
    return []


# --- errors ------------------------------------------------------------------------------------------------------

_LIMITS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "too_short": "a length of at least {min_length}",
    "string_too_short": "a length of at least {min_length}",
    "literal_error": "{expected}",
}
_PATTERNS = {
    r"^[A-Za-z0-9][A-Za-z0-9_.-]*$": "a name of letters, digits, dot, dash and underscore",
    r"^(cpu|cuda(:\d{1,3})?)$": "cpu, cuda or cuda:1",
}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "model": "a section (keys and values)",
    "dict": "a section (keys and values)",
    "tuple": "a list",
    "list": "a list",
}


def _problems(error: ValidationError, document: Document) -> list[Problem]:
    """Return one problem per value, in the order of the file. The alternatives of a union become one problem."""
    at: dict[Location, list[ErrorDetails]] = {}
    for detail in error.errors():
        location = detail["loc"]
        if detail["type"] not in ("missing", "extra_forbidden"):
            while _type_at(location) is None:  # names of union members, `[key]`
                location = location[:-1]
        at.setdefault(location, []).append(detail)
    problems = [Problem(document.place(location), _message(location, details)) for location, details in at.items()]
    return sorted(problems, key=lambda p: [int(part) if part.isdigit() else 0 for part in p.place.rsplit(":", 1)[1:]])


def _message(location: Location, details: list[ErrorDetails]) -> str:
    detail = details[0]
    name = _dotted(location)
    if detail["type"] == "extra_forbidden" and (todo := removed.advice(location)):
        return f"{name} is no longer a setting; {todo}"
    if detail["type"] == "extra_forbidden":
        known = _known_keys(location[:-1])
        near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        return f"unknown key {name}; " + (f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}")
    if detail["type"] == "missing":
        return f"{name} is missing"
    if detail["type"] == "value_error":
        return f"{name}: {detail['ctx']['error']}" if name else str(detail["ctx"]["error"])
    expected = ", or ".join(dict.fromkeys(_expected(d) for d in details))
    # Text in the place of a section may be a secret that belongs to a key of it.
    hidden = isinstance(detail["input"], str) and detail["loc"][-1] != "[key]" and _is_container(_type_at(location))
    got = "text" if hidden else _got(detail["input"])
    return f"{name}: expected {expected}; got {got}"


def _expected(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if kind == "string_pattern_mismatch":
        pattern = detail["ctx"]["pattern"]
        return _PATTERNS.get(pattern, f"text that matches {pattern}")
    if kind in _LIMITS:
        limits = {k: f"{v:g}" if isinstance(v, float) else v for k, v in detail.get("ctx", {}).items()}
        return _LIMITS[kind].format(**limits)
    return _KINDS.get(kind.split("_")[0], detail["msg"])


def _got(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list):
        return "a list"
    return repr(value)


def _missing_files(config: Config, document: Document) -> list[Problem]:
    problems = []
    for name, route in config.routes.items():
        script = route.dialogue.script
        if script and not Path(script).is_file():
            place = document.place(("routes", name, "dialogue", "script"))
            problems.append(Problem(place, f"routes.{name}.dialogue.script: no such file: {script}"))
        elif script:
            try:
                load_script(script)
            except ScriptError as exc:
                problems += [Problem(at, message) for at, message in exc.problems]
    model = config.recogniser.end_of_thought.model
    if model and not Path(model).is_file():
        key = ("recogniser", "end_of_thought", "model")
        problems.append(Problem(document.place(key), f"{'.'.join(key)}: no such file: {model}"))
    return problems


def _missing_recognisers(config: Config, document: Document) -> list[Problem]:
    return [
        Problem(document.place(("routes", name, "recogniser")), f"routes.{name}.recogniser: {why}")
        for name, route in config.routes.items()
        if (why := recognisers.problem(route, config.recogniser))
    ] + [
        Problem(
            document.place(("routes", name, "background_noise_reduction")),
            f"routes.{name}.background_noise_reduction {why}",
        )
        for name, route in config.routes.items()
        if (why := recognisers.noise_problem(route))
    ]


def _missing_voices(config: Config, document: Document) -> list[Problem]:
    engine = config.engine
    if engine.elsewhere or any(model.kind != "embedded" for model in (engine, *engine.more_models.values())):
        return []  # such engines have voices that are registered while they run
    known = voice_ids(engine.embedded)
    if known is None:
        return []
    named: list[tuple[Location, str]] = []
    for name, route in config.routes.items():
        named.append((("routes", name, "voice"), route.voice))
        named += [(("routes", name, "languages", n, "voice"), each.voice) for n, each in enumerate(route.languages)]
    return [
        Problem(
            document.place(at), f"{_dotted(at)}: the embedded engine has no voice {voice!r}; it has {', '.join(known)}"
        )
        for at, voice in named
        if voice and voice not in known
    ]


# --- helpers -----------------------------------------------------------------------------------------------------


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: dict.fromkeys(inner, "**********") if key == "headers" and isinstance(inner, dict) else _masked(inner)
            for key, inner in value.items()
        }
    return [_masked(item) for item in value] if isinstance(value, list) else value


def _dotted(location: Location) -> str:
    return ".".join(str(part) for part in location)
