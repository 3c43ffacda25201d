"""Reads a YAML file into plain data that remembers the place of each value. It knows no section and no type.

A scalar stays the text that is in the file, and the model that takes it decides what it means. So `language: no` is the
Norwegian tag and not a boolean, a PIN keeps its leading zero, and values from the file, from `${NAME}` and from an
override variable are all read the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

Value = str | list["Value"] | dict[str, "Value"] | None
Location = tuple[str | int, ...]

MAX_VALUES = 100_000
"""Most values of a file. Aliases of aliases would otherwise make any number of values out of a few lines."""

_REFERENCE = re.compile(r"\$\$|\$\{([^}]*)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STANDARD_TAGS = "tag:yaml.org,2002:"
_NULLS = {"null", "Null", "NULL", "~"}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and its place: ``demo.yaml:12``, or the name of an environment variable."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class ConfigError(Exception):
    """The configuration cannot be used. ``problems`` has at least one entry, in the order of the file."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        more = f" (and {len(problems) - 1} more; `talkspurt config check` lists all)" if len(problems) > 1 else ""
        super().__init__(f"{problems[0]}{more}")


class _TooMany(Exception):
    """The file has more than ``MAX_VALUES`` values."""


@dataclass(slots=True)
class Document:
    """Plain data, and the place of each value by its path of keys and indices."""

    name: str
    root: dict[str, Value] = field(default_factory=dict)
    places: dict[Location, str] = field(default_factory=dict)

    def place(self, location: Location) -> str:
        """Return the place of the value, or else of the nearest value around it."""
        while location and location not in self.places:
            location = location[:-1]
        return self.places.get(location, self.name)


def read(path: Path, environment: Mapping[str, str]) -> Document:
    """Read a file, with ``${NAME}`` filled in from ``environment``.

    Raises:
        ConfigError: the file is unreadable or no YAML, has a key twice, or names a variable that is not set.
    """
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise ConfigError([Problem(str(path), f"cannot be read: {exc.strerror}")]) from exc
    return parse(data, str(path), environment)


def parse(data: bytes | str, name: str, environment: Mapping[str, str] | None) -> Document:
    """Parse a text as ``read`` does a file. ``name`` stands for the file in errors. Without ``environment``,
    ``${NAME}`` stays as it is."""
    try:
        node = yaml.compose(data, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        place = f"{name}:{mark.line + 1}" if mark else name
        told = f"not YAML: {exc.problem or exc.context}"
        if mark and "$" in str(mark.get_snippet()):  # a brace of `${NAME}` inside of `{ }`
            told += '; inside { } and [ ], write "${NAME}" with quotes'
        raise ConfigError([Problem(place, told)]) from exc
    except yaml.YAMLError as exc:  # a byte that is no UTF-8, or a control character
        raise ConfigError([Problem(name, f"not YAML: {' '.join(str(exc).split())}")]) from exc
    except RecursionError as exc:
        raise ConfigError([Problem(name, "not a configuration: nested too deeply")]) from exc
    except (ValueError, OverflowError) as exc:  # an escape or a version number beyond what the library converts
        raise ConfigError([Problem(name, f"not YAML: {exc}")]) from exc
    document = Document(name)
    if node is None or _is_null(node):
        return document
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError([Problem(f"{name}:1", "expected sections (`server:`, `routes:` ...) at the top level")])
    reader = _Reader(document, environment)
    try:
        document.root = reader.mapping(node, ())
    except _TooMany as exc:
        raise ConfigError([Problem(name, f"not a configuration: over {MAX_VALUES} values with its aliases")]) from exc
    if reader.problems:
        raise ConfigError(reader.problems)
    return document


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Replace ``${NAME}``. ``$$`` is a dollar sign.

    Raises:
        ValueError: the variable is not set or empty, or there is no name between the braces.
    """

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name = match[1]
        if name is None or not _NAME.fullmatch(name):
            raise ValueError(f"expected ${{NAME}}, got {match[0]!r}; write $$ for a dollar sign")
        if not environment.get(name):
            raise ValueError(f"environment variable {name} is {'empty' if name in environment else 'not set'}")
        return environment[name]

    return _REFERENCE.sub(value, text)


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None and not node.value


def _is_null(node: yaml.Node) -> bool:
    return _is_empty(node) or (isinstance(node, yaml.ScalarNode) and node.style is None and node.value in _NULLS)


class _Reader:
    """Turns nodes into data, noting places and problems."""

    def __init__(self, document: Document, environment: Mapping[str, str] | None) -> None:
        self._document = document
        self._environment = environment
        self._open: set[int] = set()
        self.problems: list[Problem] = []

    def mapping(self, node: yaml.MappingNode, at: Location) -> dict[str, Value]:
        merged: dict[str, Value] = {}
        own: dict[str, Value] = {}
        first: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._problem(key, "a key has to be a word, got a list or section")
            elif key.value == "<<" and key.style is None:
                merged |= self._merge(value, at)
            elif key.value in first:
                line = first[key.value].start_mark.line + 1
                self._problem(key, f"{_dotted((*at, key.value))} is here twice, first in line {line}")
            else:
                first[key.value] = key
                if not _is_empty(value):  # a key whose entries are all commented out counts as absent
                    own[key.value] = self._value(value, (*at, key.value), key)
        return merged | own

    def _merge(self, node: yaml.Node, at: Location) -> dict[str, Value]:
        """Read the merge key ``<<: *shared``. Of several, the first one wins (YAML 1.1)."""
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Value] = {}
        for part in reversed(parts):
            if isinstance(part, yaml.MappingNode):
                value = self._value(part, at, part)
                merged |= value if isinstance(value, dict) else {}
            else:
                self._problem(part, "`<<` takes a section, or a list of sections")
        return merged

    def _value(self, node: yaml.Node, at: Location, where: yaml.Node) -> Value:
        self._document.places[at] = self._place(where)
        if len(self._document.places) > MAX_VALUES:
            raise _TooMany
        if not node.tag.startswith(_STANDARD_TAGS):
            self._problem(node, f"{_dotted(at)}: tags have no meaning here, got {node.tag}")
            return None
        if isinstance(node, yaml.ScalarNode):
            if _is_null(node):
                return None
            if self._environment is None:
                return str(node.value)
            try:
                return expand(node.value, self._environment)
            except ValueError as exc:
                self._problem(node, f"{_dotted(at)}: {exc}")
                return None
        if id(node) in self._open:
            self._problem(node, f"{_dotted(at)} contains itself")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self.mapping(node, at)
            return [self._value(item, (*at, index), item) for index, item in enumerate(node.value)]
        finally:
            self._open.discard(id(node))

    def _place(self, node: yaml.Node) -> str:
        return f"{self._document.name}:{node.start_mark.line + 1}"

    def _problem(self, node: yaml.Node, message: str) -> None:
        self.problems.append(Problem(self._place(node), message))


def _dotted(location: Location) -> str:
    return ".".join(str(part) for part in location)
