"""Keys of older versions are refused with what to do instead, and with their place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from talkspurt.config.removed import REMOVED, advice
from talkspurt.config.settings import ConfigError, _inner, _type_at, load

INDICES = {"registrations", "prompts", "ice_servers", "api_keys"}


def told(tmp_path: Path, text: str, **environment: str) -> list[str]:
    file = tmp_path / "old.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, environment=environment)
    return [str(problem).removeprefix(f"{file}:").strip() for problem in caught.value.problems]


def nested(key: str) -> str:
    """Write a file with an old key, a line for each step, and lists where lists belong."""
    value: object = 1
    above = ""
    for step, above in zip(reversed(key.split(".")), [*reversed(key.split(".")[:-1]), ""], strict=True):
        value = [value] if step == "*" and above in INDICES else {"any" if step == "*" else step: value}
    return yaml.safe_dump(value)


@pytest.mark.parametrize("key", REMOVED)
def test_an_old_key_is_refused_with_its_line_and_what_to_do(tmp_path: Path, key: str) -> None:
    text = nested(key)
    line = len(text.splitlines())
    found = [problem for problem in told(tmp_path, text) if "is no longer a setting" in problem]
    assert [problem.partition("; ")[2] for problem in found] == [REMOVED[key]]
    assert found[0].startswith(f"{line}: ")


@pytest.mark.parametrize("key", [key for key in REMOVED if "*" not in key])
def test_an_old_key_is_refused_in_the_environment(tmp_path: Path, key: str) -> None:
    variable = "TALKSPURT__" + key.upper().replace(".", "__")
    problems = told(tmp_path, "{}", **{variable: "1"})
    assert f"{variable}: {key} is no longer a setting; {REMOVED[key]}" in problems


@pytest.mark.parametrize("key", REMOVED)
def test_a_key_is_removed_or_known_and_never_both(key: str) -> None:
    *sections, name = ("any" if step == "*" else step for step in key.split("."))
    around = _type_at(tuple(sections))
    assert around is not None, "the section of an old key is still there, or stands in the table itself"
    assert _inner(around, name) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "engine:\n  more_models:\n    other:\n      cosyvoice:\n        lm_weights: int8\n",
            "5: engine.more_models.other.cosyvoice.lm_weights is no longer a setting; use language_model: vllm",
        ),
        (
            "x: &old\n  media: 30\nsip:\n  timeouts:\n    <<: *old\n",
            "2: sip.timeouts.media is no longer a setting; its new name is media_s",
        ),
        ("sip: {timeouts: {media: null}}\n", "1: sip.timeouts.media is no longer a setting; its new name is media_s"),
    ],
)
def test_an_old_key_is_found_wherever_its_section_stands(tmp_path: Path, text: str, expected: str) -> None:
    assert any(problem.startswith(expected) for problem in told(tmp_path, text))


def test_an_unknown_key_that_never_was_gets_no_advice() -> None:
    assert advice(("server", "prot")) is None
    assert advice(("engine",)) is None


def test_a_new_name_in_the_table_is_a_key() -> None:
    for key, said in REMOVED.items():
        if said.startswith("its new name is "):
            section = _type_at(tuple(0 if step == "*" else step for step in key.split(".")[:-1]))
            assert isinstance(section, type) and issubclass(section, BaseModel)
            assert said.removeprefix("its new name is ") in section.model_fields
