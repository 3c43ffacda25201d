"""Models that are loaded and unloaded while an engine runs.

Each model gets an engine process of its own, a child of this engine's process. So loading costs running utterances only
time of the device, a crash of one model stops no other, and unloading frees all of the model's memory. Utterances are
passed through to the process. A load that fails leaves nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from tts_engine.api import EngineStatus, ModelToLoad, SpeechEngine, Utterance, UtteranceRequest, VoiceInfo
from tts_engine.config import EngineConfig, ModelConfig
from tts_engine.errors import Exhausted, InvalidRequest, NotFound
from tts_engine.service.client import GrpcEngine

log = logging.getLogger(__name__)

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")


class ModelProcess(Protocol):
    """An engine in a process of its own, such as ``tts_engine.service.process.EngineProcess``."""

    target: str

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Loaded:
    process: ModelProcess
    engine: GrpcEngine


class EngineWithModels:
    """A ``SpeechEngine`` that speaks with the models of ``own``, and with models that are loaded later."""

    def __init__(
        self, own: SpeechEngine, config: EngineConfig, make_process: Callable[[EngineConfig], ModelProcess]
    ) -> None:
        """``make_process`` returns the process of an engine with that configuration, not started. ``aclose`` closes
        ``own`` too."""
        self._own = own
        self._config = config
        self._make_process = make_process
        self._loaded: dict[str, _Loaded] = {}
        self._busy: set[str] = set()
        """Names that are being loaded or unloaded."""
        self._active = ""
        """The loaded model for requests that name none. Empty: the active model of ``own``."""

    def open(self, request: UtteranceRequest) -> Utterance:
        loaded = self._loaded.get(request.model or self._active)
        if loaded is None:
            return self._own.open(request)
        return loaded.engine.open(replace(request, model=""))

    @property
    def _speaking(self) -> SpeechEngine:
        return self._loaded[self._active].engine if self._active else self._own

    async def list_voices(self) -> Sequence[VoiceInfo]:
        return await self._speaking.list_voices()

    async def add_voice(
        self, *, voice_id: str, name: str, wav: bytes | bytearray, transcript: str, language: str
    ) -> VoiceInfo:
        return await self._speaking.add_voice(
            voice_id=voice_id, name=name, wav=wav, transcript=transcript, language=language
        )

    async def remove_voice(self, voice_id: str) -> None:
        await self._speaking.remove_voice(voice_id)

    async def set_active_model(self, model: str) -> None:
        if model in self._loaded:
            self._active = model
        else:
            status = await self._own.status()
            if model not in (names := (*(status.models or (status.model,)), *self._loaded)):
                raise NotFound(f"model {model!r} is not loaded; there is {', '.join(names)}")
            await self._own.set_active_model(model)
            self._active = ""

    async def status(self) -> EngineStatus:
        """Return the status of the engine with all models. ``ready`` is that of ``own``, because the other processes
        restart by themselves."""
        status = await self._own.status()
        names = (*(status.models or (status.model,)), *self._loaded)
        return replace(status, model=self._active or status.model, models=names)

    async def load_model(self, model: ModelToLoad) -> None:
        """Load a model and return when it is warm.

        Raises:
            InvalidRequest: the name is taken or not allowed, the folder is not in ``models_folder`` or holds no model.
            Exhausted: ``max_loaded_models`` are loaded.
            Unavailable: the process did not come up; its log says why.
        """
        name = model.name
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"model is {name[:60]!r}, expected 1 to 40 of a-z, 0-9, '.', '_' and '-', a letter or digit first",
                field="model",
            )
        if name in self._busy or name in (await self.status()).models:
            raise InvalidRequest(f"model {name!r} is loaded already, or is being loaded or unloaded", field="model")
        if len(self._loaded.keys() | self._busy) >= (limit := self._config.max_loaded_models):
            raise Exhausted(f"{limit} models are loaded (engine.max_loaded_models); unload one", retry_after_s=60.0)
        config = _configuration(model, self._config)
        process = self._make_process(config)
        self._busy.add(name)
        try:
            await process.start()
            self._loaded[name] = _Loaded(process, GrpcEngine(process.target, config))
        finally:
            self._busy.discard(name)
        log.info("model loaded", extra={"model": name, "kind": config.kind})

    async def unload_model(self, name: str) -> None:
        """Unload a model; its utterances have ``drain_s`` to finish.

        Raises:
            NotFound: no model of that name is loaded.
            InvalidRequest: the model is active, or belongs to the configuration.
        """
        loaded = self._loaded.get(name)
        if loaded is None:
            await self._own.unload_model(name)
            return
        if name == self._active:
            raise InvalidRequest(f"model {name!r} is the active one; let another speak first", field="model")
        del self._loaded[name]
        self._busy.add(name)
        try:
            await _close(loaded)
        finally:
            self._busy.discard(name)
        log.info("model unloaded", extra={"model": name})

    async def metrics(self) -> dict[str, bytes]:
        """Return the metrics of the loaded models' processes by model, as Prometheus text."""
        loaded = dict(self._loaded)
        answers = await asyncio.gather(*(one.engine.metrics() for one in loaded.values()), return_exceptions=True)
        return {name: answer for name, answer in zip(loaded, answers, strict=True) if isinstance(answer, bytes)}

    async def aclose(self) -> None:
        loaded, self._loaded, self._active = list(self._loaded.values()), {}, ""
        await asyncio.gather(*(_close(one) for one in loaded))
        await self._own.aclose()


async def _close(loaded: _Loaded) -> None:
    """End the process, which drains first, and then the connection to it."""
    await loaded.process.aclose()
    await loaded.engine.aclose()


def _configuration(model: ModelToLoad, whole: EngineConfig) -> EngineConfig:
    """Return the configuration of the process: the engine's configuration, with this model instead of its own.

    Raises:
        InvalidRequest: a field of ``model`` is wrong.
    """
    cosyvoice = whole.cosyvoice.model_dump()
    if model.cosyvoice:
        try:
            changes = json.loads(model.cosyvoice)
        except (ValueError, RecursionError) as exc:  # RecursionError: deeply nested JSON
            raise InvalidRequest(f"cosyvoice is no JSON: {exc}", field="cosyvoice") from None
        if not isinstance(changes, dict):
            raise InvalidRequest("cosyvoice is no JSON object", field="cosyvoice")
        cosyvoice |= changes
    section: dict[str, object] = {"device": model.device or whole.device, "cosyvoice": cosyvoice}
    if model.kind:
        section["kind"] = model.kind
    if model.folder:
        section["model_folder"] = str(_folder(model.folder, whole))
    elif not model.kind:
        raise InvalidRequest("neither folder nor kind says which model to load", field="folder")
    try:
        own = ModelConfig.model_validate(section)
    except ValidationError as exc:
        first = exc.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "folder"
        raise InvalidRequest(f"{field}: {first['msg']}", field=field.partition(".")[0]) from None
    if own.kind.startswith("cosyvoice") and not own.model_folder:
        raise InvalidRequest(f"{own.kind} needs a folder", field="folder")
    update = {name: getattr(own, name) for name in ModelConfig.model_fields}
    alone = {"more_models": {}, "max_loaded_models": 0, "devices": (), "targets": (), "metrics_port": None}
    return whole.model_copy(update=update | alone)


def _folder(name: str, whole: EngineConfig) -> Path:
    if not whole.models_folder:
        raise InvalidRequest("engine.models_folder is not set, so no folder can be loaded", field="folder")
    within = Path(whole.models_folder).resolve()
    folder = (within / name).resolve()
    if not folder.is_relative_to(within) or not folder.is_dir():
        raise InvalidRequest(f"folder {name[:80]!r} is no folder within engine.models_folder", field="folder")
    return folder
