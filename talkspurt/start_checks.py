"""Finds what would stop a server at its start, or would surprise afterwards, without starting it.

``config check`` reports both kinds; ``serve`` refuses to start because of the first kind.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sip_bridge.message.sip import Uri
from talkspurt.config.settings import Config
from talkspurt.greeting import without_keys
from talkspurt.recognisers import deaf_routes
from talkspurt.workers import listeners
from tts_engine.config import ModelConfig

_SQLITE = "sqlite:///"


def problems(config: Config) -> Iterator[str]:
    """Yield what this machine lacks, one line each, with the key."""
    for key, folder in _written_folders(config):
        if why := _not_writable(Path(folder)):
            yield f"{key}: {folder} cannot be written: {why}"
    for name, model in _local_models(config):
        if not model.model_folder:
            yield f"{name}.model_folder is missing: the engine {model.kind} needs a model directory"
        elif not Path(model.model_folder).is_dir():
            yield f"{name}.model_folder: no such folder: {model.model_folder}"
    for key, file in _read_files(config):
        if not os.access(file, os.R_OK) or not Path(file).is_file():
            yield f"{key}: no such file, or it cannot be read: {file}"
    if config.clips.folder and not Path(config.clips.folder).is_dir():
        yield f"clips.folder: no such folder: {config.clips.folder}"


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


def _read_files(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the files that the server reads at its start, each with its key. Scripts and the turn model are read with
    the configuration."""
    if config.server.tls is not None:
        yield "server.tls.certificate", config.server.tls.certificate
        yield "server.tls.key", config.server.tls.key
    if config.sip is not None and config.sip.tls is not None:
        yield "sip.tls.certificate", config.sip.tls.certificate
        yield "sip.tls.key", config.sip.tls.key
        if config.sip.tls.authorities:
            yield "sip.tls.authorities", config.sip.tls.authorities
    if config.auth.jwt is not None and config.auth.jwt.jwks_file:
        yield "auth.jwt.jwks_file", config.auth.jwt.jwks_file


def _written_folders(config: Config) -> Iterator[tuple[str, str]]:
    if config.calls.folder:
        yield "calls.folder", config.calls.folder
    if config.recording.folder:
        yield "recording.folder", config.recording.folder
    if config.records.database_url.startswith(_SQLITE):
        yield "records.database_url", str(Path(config.records.path).parent)


def _not_writable(folder: Path) -> str:
    """Return the reason why files cannot be written into a folder, which the server makes if it is missing. Empty:
    they can."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return f"{there} is no folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"no permission in {there}"
    try:  # only a file shows a full disk, and what root may not do either, as in /proc
        with tempfile.TemporaryFile(dir=there):
            return ""
    except OSError as exc:
        return f"{exc.strerror} in {there}"
