"""The engine's models over HTTP: list, load and unload models, and choose the active one."""

from __future__ import annotations

from typing import Any, Literal

import orjson
from aiohttp import web
from pydantic import ConfigDict, Field

from gateway.errors import Rejected
from gateway.http.request.routes import ApiModel, Route
from gateway.http.speech_api.speech import OPENAI_MODELS
from gateway.model_trial import ModelTrials
from tts_engine.api import EngineStatus, ModelToLoad, SpeechEngine


class ModelView(ApiModel):
    """A model in OpenAI's form: a loaded one, or an OpenAI name that stands for one."""

    id: str
    object: str = "model"
    created: int = 0
    """Always 0. OpenAI's clients need a number here."""
    owned_by: str
    """The engine that runs it."""
    active: bool
    """True: this model speaks new utterances."""
    stands_for: str = ""
    """The loaded model that an OpenAI name stands for, which is the active one. Empty: this is a loaded model."""


class ModelList(ApiModel):
    """``GET /v1/models``."""

    object: str = "list"
    data: list[ModelView]


class ActiveModelBody(ApiModel):
    """Body of ``POST /v1/models/active``."""

    model_config = ConfigDict(extra="forbid")

    model: str


class LoadModelBody(ApiModel):
    """Body of ``POST /v1/models``: the model to load, and its name."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,39}$")
    """The name: lower-case letters, digits and ``._-``, at most 40."""
    folder: str = ""
    """The model's folder within ``engine.models_folder`` on the engine's machine. Empty for models without one."""
    kind: Literal["", "embedded", "tone", "cosyvoice2", "cosyvoice3"] = ""
    """Empty: detected from the folder."""
    device: str = ""
    """``cpu``, ``cuda`` ... Empty: the engine's device."""
    cosyvoice: dict[str, Any] = {}
    """Keys of ``engine.cosyvoice`` that differ from the engine's, such as ``cache_gb``."""


def _views(status: EngineStatus) -> dict[str, ModelView]:
    """Return all models by name: first the loaded ones, then the other names that ``POST /v1/audio/speech`` accepts."""
    loaded = [name for name in dict.fromkeys((*status.models, status.model)) if name]
    views = {name: ModelView(id=name, owned_by=status.engine, active=name == status.model) for name in loaded}
    for name in OPENAI_MODELS:
        if status.model and name not in views:
            views[name] = ModelView(id=name, owned_by=status.engine, active=True, stands_for=status.model)
    return views


class Models:
    """Handlers of ``/v1/models``."""

    def __init__(self, engine: SpeechEngine, trials: ModelTrials) -> None:
        self._engine = engine
        self._trials = trials

    def routes(self) -> list[Route]:
        """Return the routes for ``make_app``."""
        path, tags = "/v1/models", ["models"]
        return [
            Route(method="GET", path=path, handler=self.list,
                  summary="Loaded models, and OpenAI's names", answer=ModelList, tags=tags),
            Route(method="GET", path=f"{path}/{{model_id}}", handler=self.show,
                  summary="A model by its id", answer=ModelView, tags=tags),
            Route(method="POST", path=path, handler=self.load,
                  summary="Load a model beside the active one",
                  body=LoadModelBody, answer=ModelList, tags=tags),
            Route(method="DELETE", path=f"{path}/{{model_id}}", handler=self.unload,
                  summary="Unload a model that was loaded at run time", answer=ModelList, tags=tags),
            Route(method="POST", path=f"{path}/active", handler=self.activate,
                  summary="Choose the active model",
                  body=ActiveModelBody, answer=ModelList, tags=tags),
        ]  # fmt: skip

    async def list(self, request: web.Request) -> web.Response:
        """Return all models that ``POST /v1/audio/speech`` accepts."""
        views = _views(await self._engine.status())
        return web.json_response(ModelList(data=list(views.values())).model_dump())

    async def show(self, request: web.Request) -> web.Response:
        """Return one of them, as OpenAI's ``models.retrieve`` expects."""
        name = request.match_info["model_id"]
        status = await self._engine.status()
        views = _views(status)
        if name not in views:
            raise _not_loaded(name, status)
        return web.json_response(views[name].model_dump())

    async def activate(self, request: web.Request) -> web.Response:
        """Make a model speak new utterances. Utterances in progress finish on their own model."""
        body = ActiveModelBody.from_json(await request.read())
        await self._require(body.model)
        await self._engine.set_active_model(body.model)
        return await self.list(request)

    async def load(self, request: web.Request) -> web.Response:
        """Load a model in its own process, and answer when it is warm, which may take minutes. The active model stays
        the same. On failure, nothing has changed."""
        body = LoadModelBody.from_json(await request.read())
        status = await self._engine.status()
        if body.id in (*status.models, status.model):
            raise Rejected(f"model {body.id!r} is loaded already", status=409, code="model_loaded", param="id")
        await self._engine.load_model(
            ModelToLoad(
                name=body.id,
                folder=body.folder,
                kind=body.kind,
                device=body.device,
                cosyvoice=orjson.dumps(body.cosyvoice).decode() if body.cosyvoice else "",
            )
        )
        return await self.list(request)

    async def unload(self, request: web.Request) -> web.Response:
        """Unload a model. New utterances on it are refused immediately; those in progress finish within
        ``engine.drain_s``. The active model and those of the configuration cannot be unloaded."""
        name = request.match_info["model_id"]
        status = await self._require(name)
        if name == status.model:
            raise Rejected(
                f"model {name!r} is the active one; activate another model first",
                status=409,
                code="model_active",
                param="id",
            )
        if (trial := self._trials.current) is not None and name == trial.terms.model:
            raise Rejected(
                f"model {name!r} is on trial; end the trial first (DELETE /v1/trial)",
                status=409, code="model_on_trial", param="id",
            )  # fmt: skip
        await self._engine.unload_model(name)
        return await self.list(request)

    async def _require(self, name: str) -> EngineStatus:
        """Return the engine's status if it has that model. Raises ``Rejected``."""
        status = await self._engine.status()
        if name not in (status.models or (status.model,)):
            raise _not_loaded(name, status)
        return status


def _not_loaded(name: str, status: EngineStatus) -> Rejected:
    loaded = ", ".join(status.models or (status.model,))
    message = f"model {name[:40]!r} is not loaded, expected one of {loaded}"
    return Rejected(message, status=404, code="model_not_found", param="model")
