"""REST over the engine's models: which are loaded, and which one speaks what is opened from now on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from gateway.http.routes import Route
from tts_engine.api import EngineStatus, SpeechEngine


class ModelView(BaseModel):
    """One loaded model; the first three names are those of OpenAI's list."""

    id: str
    object: Literal["model"] = "model"
    owned_by: str
    active: bool


class ModelList(BaseModel):
    """All loaded models."""

    object: Literal["list"] = "list"
    data: list[ModelView]


class ActiveModel(BaseModel):
    """Body of ``POST /v1/models/active``."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(min_length=1)


class Models:
    """Handlers of ``/v1/models``."""

    def __init__(self, engine: SpeechEngine) -> None:
        self._engine = engine

    async def list(self, request: web.Request) -> web.Response:
        """All loaded models. Raises ``EngineError``."""
        return web.json_response(_view(await self._engine.status()).model_dump())

    async def switch(self, request: web.Request) -> web.Response:
        """Make another model the active one: turns that speak keep theirs. Raises ``EngineError``."""
        body = ActiveModel.model_validate_json(await request.read())
        await self._engine.set_active_model(body.model)
        return web.json_response(_view(await self._engine.status()).model_dump())

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="GET", path="/v1/models", handler=self.list, summary="Loaded models", answer=ModelList,
                tags=["models"],
            ),
            Route(
                method="POST", path="/v1/models/active", handler=self.switch, summary="Switch the active model",
                body=ActiveModel, answer=ModelList, tags=["models"],
            ),
        ]  # fmt: skip


def _view(status: EngineStatus) -> ModelList:
    names = status.models or (status.model,)
    return ModelList(data=[ModelView(id=n, owned_by="talkspurt", active=n == status.model) for n in names])
