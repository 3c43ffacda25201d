"""The reference page: examples by task that are valid, and every key once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gateway.carriers.freeswitch.settings import EslConfig
from talkspurt.config.reference import json_schema, keys, markdown
from talkspurt.config.settings import load
from talkspurt.config.tasks import TASKS, Task
from talkspurt.config.yaml_file import expand

SECRETS = {
    "WEBHOOK_SECRET": "whsec_" + "A" * 32,
    "RECORDING_KEY": "0f" * 32,
    "REDIS_URL": "redis://redis.example.com:6379/0",
    "DATABASE_URL": "postgresql://talkspurt:secret@db.example.com:5432/talkspurt",
}
MOST_KEYS = 396
"""Scalar keys of the configuration, with those of a section once for each of its places. A new key needs an operator
who would change it, and a sign that tells when; then raise this."""
MOST_BYTES = 59_409


def environment(task: Task) -> dict[str, str]:
    return dict.fromkeys(re.findall(r"\$\{(\w+)\}", task.yaml), "a-secret") | SECRETS


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.title)
def test_the_example_of_a_task_is_a_valid_configuration(tmp_path: Path, task: Task) -> None:
    file = tmp_path / "talkspurt.yaml"
    file.write_text(task.yaml)
    load(file, environment=environment(task))
    jsonschema.validate(yaml.safe_load(expand(task.yaml, environment(task))), json_schema())


def leaves(value: Any, path: str = "") -> set[str]:
    if isinstance(value, dict):
        return {leaf for name, inner in value.items() for leaf in leaves(inner, f"{path}.{name}".lstrip("."))}
    return {path}


def test_the_examples_show_what_most_people_set() -> None:
    shown = {leaf for task in TASKS for leaf in leaves(yaml.safe_load(task.yaml))}
    assert 40 <= len(shown) <= 90
    assert "routes.default.dialogue.url" in shown and "carriers.twilio.auth_token" in shown


def test_the_page_is_short_and_describes_each_key_once() -> None:
    page = markdown()
    assert len(page.encode()) <= MOST_BYTES
    assert page.count("* `quantization") == 0 and page.count("* `language_model`") == 1
    assert "### `carriers.freeswitch.esl`" in page and "### `carriers.freeswitch_fork.esl`" not in page
    assert "The same keys stand in `carriers.freeswitch_fork.esl`." in page
    assert all(page.count(f"* `{name}` (") >= 1 for name in EslConfig.model_fields)
    for key in keys():
        assert f"* `{key.rpartition('.')[2]}` (" in page


def test_a_key_that_two_sections_describe_alike_is_described_once() -> None:
    page = markdown()
    sections = dict(re.findall(r"^### `([\w.\[\]]+)`\n\n.*\n\n((?:\* .*\n)+)", page, re.MULTILINE))
    assert "* `verify` (`true`): " in sections["carriers.asterisk"]
    assert "* `verify`: as in `carriers.asterisk`." in sections["carriers.vonage"]
    named = re.findall(r"^\* (`.*`): as in `(.*)`\.$", page, re.MULTILINE)
    assert named
    for names, section in named:
        assert all(f"* {name} (" in sections[section] for name in names.split(", "))


def test_the_number_of_keys_grows_on_purpose_only() -> None:
    assert len(keys()) <= MOST_KEYS


def test_a_quantity_has_its_unit_in_its_name() -> None:
    """Counts, shares and switches have none; a sample rate is in hertz everywhere."""
    name = re.compile(r"(timeout|wait|delay|interval|duration|pause|silence|size|length|memory|gain|rate)$")
    without_unit = ("sample_rate", "message", "answer.wait")
    assert [key for key in keys() if name.search(key) and not key.endswith(without_unit)] == []
