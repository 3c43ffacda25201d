"""The engine's models over HTTP: which models are loaded, and which one speaks."""

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
    """A model, in the form in which OpenAI lists models: a loaded one, or a name of OpenAI's that stands for one."""

    id: str
    object: str = "model"
    created: int = 0
    """Always 0. OpenAI's clients want a number here."""
    owned_by: str
    """The engine that runs it."""
    active: bool
    """True: this model speaks new utterances."""
    stands_for: str = ""
    """The loaded model that a name of OpenAI's means, which is the active one. Empty: this is a loaded model."""


class ModelList(ApiModel):
    """``GET /v1/models``."""

    object: str = "list"
    data: list[ModelView]


class ActiveModelBody(ApiModel):
    """Body of ``POST /v1/models/active``."""

    model_config = ConfigDict(extra="forbid")

    model: str


class LoadModelBody(ApiModel):
    """Body of ``POST /v1/models``: what is loaded, and under which name it will be known."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,39}$")
    """The name: small letters, digits and ``._-``, at most 40."""
    folder: str = ""
    """The model's folder within ``engine.models_folder`` of the engine's machine. Empty for models that need none."""
    kind: Literal["", "embedded", "tone", "cosyvoice2", "cosyvoice3"] = ""
    """Empty: what the folder holds."""
    device: str = ""
    """``cpu``, ``cuda`` ... Empty: that of the engine."""
    cosyvoice: dict[str, Any] = {}
    """Keys of ``engine.cosyvoice`` that differ from the engine's, such as ``cache_gb``."""


def _views(status: EngineStatus) -> dict[str, ModelView]:
    """Return all models by their names: first the loaded ones, then what ``POST /v1/audio/speech`` takes besides."""
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
        """For ``make_app``."""
        path, tags = "/v1/models", ["models"]
        return [
            Route(method="GET", path=path, handler=self.list, scope="speak",
                  summary="Loaded models, and OpenAI's names", answer=ModelList, tags=tags),
            Route(method="GET", path=f"{path}/{{model_id}}", handler=self.show, scope="speak",
                  summary="A model by its id", answer=ModelView, tags=tags),
            Route(method="POST", path=path, handler=self.load, scope="admin",
                  summary="Load a model beside the one that speaks",
                  body=LoadModelBody, answer=ModelList, tags=tags),
            Route(method="DELETE", path=f"{path}/{{model_id}}", handler=self.unload, scope="admin",
                  summary="Unload a model that was loaded while the engine ran", answer=ModelList, tags=tags),
            Route(method="POST", path=f"{path}/active", handler=self.activate, scope="admin",
                  summary="Choose the model that speaks",
                  body=ActiveModelBody, answer=ModelList, tags=tags),
        ]  # fmt: skip

    async def list(self, request: web.Request) -> web.Response:
        """All models that ``POST /v1/audio/speech`` takes."""
        views = _views(await self._engine.status())
        return web.json_response(ModelList(data=list(views.values())).model_dump())

    async def show(self, request: web.Request) -> web.Response:
        """One of them, as OpenAI's ``models.retrieve`` asks for it."""
        name = request.match_info["model_id"]
        status = await self._engine.status()
        views = _views(status)
        if name not in views:
            raise _not_loaded(name, status)
        return web.json_response(views[name].model_dump())

    async def activate(self, request: web.Request) -> web.Response:
        """Let that model speak new utterances. Utterances under way finish on theirs."""
        body = ActiveModelBody.model_validate_json(await request.read())
        await self._require(body.model)
        await self._engine.set_active_model(body.model)
        return await self.list(request)

    async def load(self, request: web.Request) -> web.Response:
        """Load a model in a process of its own, and answer when it is warm, which may take minutes. Who speaks does not
        change. If the model cannot be loaded, nothing has changed."""
        body = LoadModelBody.model_validate_json(await request.read())
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
        """Unload a model. New utterances are refused it at once; those under way finish, within ``engine.drain_s``. The
        active model and those of the configuration stay."""
        name = request.match_info["model_id"]
        status = await self._require(name)
        if name == status.model:
            raise Rejected(
                f"model {name!r} is the active one; let another speak first",
                status=409,
                code="model_active",
                param="id",
            )
        if (trial := self._trials.current) is not None and name == trial.terms.model:
            raise Rejected(
                f"model {name!r} is on trial; end that first (DELETE /v1/trial)", status=409, code="model_on_trial",
                param="id",
            )  # fmt: skip
        await self._engine.unload_model(name)
        return await self.list(request)

    async def _require(self, name: str) -> EngineStatus:
        """Return the engine's status if it has that model. Raises Rejected."""
        status = await self._engine.status()
        if name not in (status.models or (status.model,)):
            raise _not_loaded(name, status)
        return status


def _not_loaded(name: str, status: EngineStatus) -> Rejected:
    loaded = ", ".join(status.models or (status.model,))
    message = f"model {name[:40]!r} is not loaded; there is {loaded}"
    return Rejected(message, status=404, code="model_not_found", param="model")
