"""A model on trial over HTTP: it speaks a share of the new calls, its figures are shown, and it is stopped after
errors."""

from __future__ import annotations

from aiohttp import web
from pydantic import ConfigDict, Field

from gateway.errors import Rejected
from gateway.http.request.routes import ApiModel, Route
from gateway.model_trial import ModelTrials, TrialTerms
from tts_engine.api import SpeechEngine


class TrialBody(ApiModel):
    """Body of ``PUT /v1/trial``."""

    model_config = ConfigDict(extra="forbid")

    model: str
    """A loaded model that is not the active one."""
    percent: float = Field(default=0, ge=0, le=100)
    """Share of the new calls."""
    key: str = Field(default="call", min_length=1, max_length=100)
    """The value of a call that decides, so that equal values always get the same model: ``call`` (each call for
    itself), ``from``, ``to``, ``route``, or the name of a custom parameter."""
    values: list[str] = Field(default_factory=list, max_length=1000)
    """Values of the key whose calls are always on trial."""
    max_error_ratio: float = Field(default=0.05, ge=0, le=1)
    """Errors per turn above which the trial ends by itself."""
    max_gap_ratio: float = Field(default=0.2, ge=0)
    """Gaps per turn above which the trial ends by itself."""
    min_turns: int = Field(default=20, ge=1)
    """Fewest turns for these ratios, so that one early error does not end the trial."""
    window_turns: int = Field(default=200, ge=1)
    """Number of latest turns that the ratios cover."""


class TrialView(ApiModel):
    """The current trial, or the one that ended last."""

    model: str = ""
    percent: float = 0.0
    key: str = ""
    state: str = "none"
    """``none``: there was no trial since the start; ``running``; or the reason of its end: ``stopped``, ``errors``,
    ``gaps``."""
    calls: int = 0
    turns: int = 0
    error_ratio: float = 0.0
    gap_ratio: float = 0.0


class Trials:
    """Handlers of ``/v1/trial``."""

    def __init__(self, engine: SpeechEngine, trials: ModelTrials) -> None:
        self._engine = engine
        self._trials = trials

    def routes(self) -> list[Route]:
        """Return the routes for ``make_app``."""
        path, tags = "/v1/trial", ["models"]
        return [
            Route(method="GET", path=path, handler=self.show,
                  summary="The model on trial", answer=TrialView, tags=tags),
            Route(method="PUT", path=path, handler=self.begin,
                  summary="Give a share of the new calls to another model",
                  body=TrialBody, answer=TrialView, tags=tags),
            Route(method="DELETE", path=path, handler=self.stop,
                  summary="Return all calls to the active model", answer=TrialView, tags=tags),
        ]  # fmt: skip

    async def show(self, request: web.Request) -> web.Response:
        """Return the current trial, or the last one and the reason of its end."""
        view = TrialView()
        if (trial := self._trials.latest) is not None:
            view = TrialView(
                model=trial.terms.model,
                percent=trial.terms.percent,
                key=trial.terms.key,
                state=trial.ended or "running",
                calls=trial.calls,
                turns=trial.turns,
                error_ratio=round(trial.error_ratio, 4),
                gap_ratio=round(trial.gap_ratio, 4),
            )
        return web.json_response(view.model_dump())

    async def begin(self, request: web.Request) -> web.Response:
        """Start a trial, replacing a running one. Live calls keep their model. If the model fails a turn, the active
        model continues it, and it counts as an error. After too many errors or gaps the trial ends, and its calls
        continue with the active model. All workers of one server share one trial; each machine behind a load balancer
        has its own."""
        body = TrialBody.from_json(await request.read())
        status = await self._engine.status()
        if body.model not in status.models:
            raise Rejected(
                f"model {body.model[:40]!r} is not loaded, expected one of {', '.join(status.models)}",
                status=404, code="model_not_found", param="model",
            )  # fmt: skip
        if body.model == status.model:
            raise Rejected(
                f"model {body.model!r} is the active one and speaks all calls", status=409, code="model_active",
                param="model",
            )  # fmt: skip
        terms = body.model_dump() | {"values": frozenset(body.values)}
        self._trials.begin(TrialTerms(**terms))
        return await self.show(request)

    async def stop(self, request: web.Request) -> web.Response:
        """End the trial. Its calls continue with the active model at their next turn."""
        self._trials.stop()
        return await self.show(request)
