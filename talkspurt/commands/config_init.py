"""``talkspurt config init`` writes a commented configuration that starts as it is.

A sample names its secrets and addresses as ``${NAME}``. A variable that is set stays a reference. One that is not set
becomes a value to replace: an address of the ranges for documentation, or a secret by chance, which opens nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from talkspurt.cli import JobError, UsageError
from talkspurt.invocation import command
from talkspurt.samples import FOLDER

PROFILES: Mapping[str, str] = {
    "laptop": "laptop.yaml",
    "twilio": "twilio.yaml",
    "sip": "callcenter-sip.yaml",
    "freeswitch": "freeswitch.yaml",
    "gpu": "gpu-cosyvoice3.yaml",
}
"""Profile -> sample that it is written from."""


def _secret() -> str:
    return secrets.token_urlsafe(24)


_VALUES: Mapping[str, Callable[[], str]] = {
    "PUBLIC_HOST": lambda: "voice.example.com",
    "DIALOGUE_URL": lambda: "wss://bot.example.com/relay",
    "SIP_ADDRESS": lambda: "192.0.2.12",  # RFC 5737: addresses of documentation
    "PBX_NETWORK": lambda: "192.0.2.0/28",
    "PBX_HOST": lambda: "192.0.2.1",
    "ESL_PASSWORD": lambda: "ClueCon",  # that of an unchanged FreeSWITCH
}
"""Variable -> what stands for it while it is not set. All others are secrets."""

_MODEL = Path("models/cosyvoice3")
"""Folder of the voice model in the sample, from where talkspurt is started."""

_REFERENCE = re.compile(r"\$\{([A-Z_]+)\}")


def written(profile: str, name: str, environment: Mapping[str, str]) -> str:
    """Return the configuration of a profile.

    Args:
        profile: one of ``PROFILES``.
        name: path of the file that it becomes, which its comments name.
        environment: variables that are set.
    """
    sample = PROFILES[profile]
    text = (FOLDER / sample).read_text(encoding="utf-8")
    text = text.replace(f"configs/{sample}", name).replace("../var/", "var/")
    text = text.replace("Set the environment:", "These values are yours to set, below or as environment variables:")
    chosen: dict[str, str] = {}
    lines = []
    for line in text.splitlines():
        setting, mark, comment = line.partition("#")
        lines.append(_REFERENCE.sub(lambda match: _value(match[1], environment, chosen), setting) + mark + comment)
    head = [f"# Written by `talkspurt config init {profile}`."]
    if chosen:
        width = max(map(len, chosen))
        head[0] += " These variables were not set, so values to replace are below."
        head.append("# Write your own there, or ${NAME} and set the variable:")
        head += [f"#   {name:{width}}  {value}" for name, value in chosen.items()]
    return "\n".join([*head, "#", *lines, ""])


def _value(name: str, environment: Mapping[str, str], chosen: dict[str, str]) -> str:
    if environment.get(name):
        return f"${{{name}}}"
    if name not in chosen:
        chosen[name] = _VALUES.get(name, _secret)()
    return chosen[name]


def run(args: argparse.Namespace) -> int:
    """Run ``talkspurt config init``."""
    path: Path = args.output
    try:
        # It may hold secrets, so only its owner reads it. An existing file is never overwritten.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(written(args.profile, str(path), os.environ))
        if args.profile == "gpu":
            _MODEL.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"{path} exists already; name another file with -o") from None
    except OSError as exc:
        raise JobError(f"{exc.filename}: {exc.strerror}") from exc
    print(f"{path}: written. Read its comments, then:")
    if args.profile == "gpu":
        print(f"  put a model into {_MODEL}, then: {command()} doctor --model {_MODEL}")
    print(f"  {command()} config check {path}")
    print(f"  {command()} serve -c {path}")
    return 0
