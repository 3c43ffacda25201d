"""Finds what would stop a server at its start, or would surprise afterwards, without starting it.

``config check`` reports both kinds; ``serve`` refuses to start because of the first kind.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from gateway.credentials import api_keys
from gateway.errors import CredentialsError
from sip_bridge.message.sip import Uri
from talkspurt.config.settings import Config
from talkspurt.greeting import without_keys
from talkspurt.recognisers import deaf_routes
from talkspurt.workers import listeners
from tts_engine.config import ModelConfig

_SQLITE = "sqlite:///"


def problems(config: Config) -> Iterator[str]:
    """Yield what this machine lacks, one line each, with the key."""
    for name, model in _local_models(config):
        if not model.model_folder:
            yield f"{name}.model_folder is missing: the engine {model.kind} needs a model directory"
    for key, path, access in _paths(config):
        if key.startswith("engine.") and not key.startswith("engine.tls.") and config.engine.elsewhere:
            continue  # they belong to the machine of the engines
        if why := _PROBLEMS[access](path):
            yield f"{key}: {why}"
    if config.records.database_url.startswith(_SQLITE):
        folder = str(Path(config.records.path).parent)
        if why := _not_writable(folder):
            yield f"records.database_url: {why}"


def warnings(config: Config) -> Iterator[str]:
    """Yield what may be intended, or may be otherwise when the server starts. Resolves host names."""
    if closed := without_keys(config):
        yield closed
    for name, why in deaf_routes(config.routes).items():
        yield f"route {name} cannot hear: {why}"
    for name, model in _local_models(config):
        folder = Path(model.model_folder)
        if not any((folder / f"{each}.yaml").is_file() for each in ("cosyvoice2", "cosyvoice3")):
            yield (
                f"{name}.model_folder: {folder} holds no model yet; the engine starts when the files of a CosyVoice "
                "model are there"
            )
    try:
        listeners.check(config)
    except OSError as exc:
        yield str(exc)
    for number, registration in enumerate(config.sip.registrations if config.sip else ()):
        for registrar in registration.registrars:
            host = Uri.parse(registrar).host
            try:
                socket.getaddrinfo(host.strip("[]"), None)
            except OSError as exc:
                yield f"sip.registrations.{number}.registrar: {host} has no address: {exc.strerror}"


def _local_models(config: Config) -> Iterator[tuple[str, ModelConfig]]:
    """Yield the models that this machine loads from a folder, each with its key."""
    engine = config.engine
    if not engine.elsewhere:
        models = {"engine": engine, **{f"engine.more_models.{name}": each for name, each in engine.more_models.items()}}
        yield from ((name, model) for name, model in models.items() if model.kind not in ("tone", "embedded"))


def _paths(value: object, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield each path that a part of the configuration names, with its key and its ``access``."""
    if isinstance(value, BaseModel):
        for name, info in type(value).model_fields.items():
            below, extra = getattr(value, name), info.json_schema_extra
            if isinstance(extra, dict) and "access" in extra:
                if below:
                    yield f"{key}{name}", below, str(extra["access"])
            else:
                yield from _paths(below, f"{key}{name}.")
    elif isinstance(value, Mapping):
        for name, below in value.items():
            yield from _paths(below, f"{key}{name}.")
    elif isinstance(value, tuple):
        for number, below in enumerate(value):
            yield from _paths(below, f"{key}{number}.")


def _unreadable(file: str) -> str:
    there = Path(file).is_file() and os.access(file, os.R_OK)
    return "" if there else f"no such file, or it cannot be read: {file}"


def _no_folder(folder: str) -> str:
    return "" if Path(folder).is_dir() else f"no such folder: {folder}"


def _not_writable(folder: str) -> str:
    """Return the reason why files cannot be written into a folder, which the server makes if it is missing."""
    there = Path(folder)
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        why = f"{there} is no folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        why = f"no permission in {there}"
    else:
        try:  # only a file shows a full disk, and what root may not do either, as in /proc
            with tempfile.TemporaryFile(dir=there):
                return ""
        except OSError as exc:
            why = f"{exc.strerror} in {there}"
    return f"{folder} cannot be written: {why}"


def _no_keys(file: str) -> str:
    try:
        api_keys.read(Path(file))
    except CredentialsError as exc:
        return str(exc)
    return ""


_PROBLEMS = {"file": _unreadable, "folder": _no_folder, "written": _not_writable, "keys": _no_keys}
"""Problem of a path, by the ``access`` of its field in the configuration's models. Empty: nothing."""
