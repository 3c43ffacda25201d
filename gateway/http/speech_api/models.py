"""The engine's models over HTTP: which models are loaded, and which one speaks."""

from __future__ import annotations

from aiohttp import web
from pydantic import ConfigDict

from gateway.errors import Rejected
from gateway.http.request.routes import ApiModel, Route
from tts_engine.api import SpeechEngine


class ModelView(ApiModel):
    """A loaded model, in the form in which OpenAI lists models."""

    id: str
    object: str = "model"
    owned_by: str
    """The engine that runs it."""
    active: bool
    """Does this model speak new utterances?"""


class ModelList(ApiModel):
    """``GET /v1/models``."""

    object: str = "list"
    data: list[ModelView]


class ActiveModelBody(ApiModel):
    """Body of ``POST /v1/models/active``."""

    model_config = ConfigDict(extra="forbid")

    model: str


class Models:
    """Handlers of ``/v1/models``."""

    def __init__(self, engine: SpeechEngine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        """For ``make_app``."""
        path, tags = "/v1/models", ["models"]
        return [
            Route(method="GET", path=path, handler=self.list, scope="speak",
                  summary="Loaded models", answer=ModelList, tags=tags),
            Route(method="POST", path=f"{path}/active", handler=self.activate, scope="admin",
                  summary="Choose the model that speaks",
                  body=ActiveModelBody, answer=ModelList, tags=tags),
        ]  # fmt: skip

    async def list(self, request: web.Request) -> web.Response:
        """All loaded models."""
        status = await self._engine.status()
        names = list(dict.fromkeys((*status.models, status.model)))
        data = [ModelView(id=name, owned_by=status.engine, active=name == status.model) for name in names if name]
        return web.json_response(ModelList(data=data).model_dump())

    async def activate(self, request: web.Request) -> web.Response:
        """Let that model speak new utterances. Utterances under way finish on theirs."""
        body = ActiveModelBody.model_validate_json(await request.read())
        status = await self._engine.status()
        if body.model not in (loaded := status.models or (status.model,)):
            raise Rejected(
                f"model {body.model[:40]!r} is not loaded; there is {', '.join(loaded)}",
                status=404, code="model_not_found", param="model",
            )  # fmt: skip
        await self._engine.set_active_model(body.model)
        return await self.list(request)
