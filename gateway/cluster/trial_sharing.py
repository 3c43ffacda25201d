"""A model on trial in the workers of one server: the first worker leads the trial; the others report their counts to it
and get its state."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import aiohttp
import orjson
from aiohttp import web

from gateway.model_trial import ModelTrials, TrialCounts, TrialTerms

EVERY_S = 0.25
"""Pause between two reports of a worker, which delays the start, the end and the errors of a trial."""

_TIMEOUT_S = 2.0


def route(trials: ModelTrials) -> web.RouteDef:
    """Return the route by which the leading worker takes reports."""

    async def tell(request: web.Request) -> web.Response:
        told = orjson.loads(await request.read())
        trials.count_elsewhere(told["id"], TrialCounts(**told["counts"]))
        trial, standing = trials.latest, None
        if trial is not None:
            terms = {**asdict(trial.terms), "values": sorted(trial.terms.values)}
            standing = {"id": trial.id, "terms": terms, "ended": trial.ended}
        return web.Response(body=orjson.dumps(standing), content_type="application/json")

    return web.post("/trial", tell)


async def follow(trials: ModelTrials, socket: Path) -> None:
    """Follow the worker at ``socket``. While it is gone, the trial continues unchanged; a restarted one has no trial.
    Never returns."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket)), timeout=timeout) as http:
        while True:
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                await _ask(trials, http)
            await asyncio.sleep(EVERY_S)


async def _ask(trials: ModelTrials, http: aiohttp.ClientSession) -> None:
    trial_id, counts = trials.latest.id if trials.latest is not None else "", trials.untold
    trials.untold = TrialCounts()
    try:
        data = orjson.dumps({"id": trial_id, "counts": asdict(counts)})
        async with http.post("http://worker/trial", data=data) as answer:
            answer.raise_for_status()
            standing = orjson.loads(await answer.read())
    except BaseException:
        trials.untold += counts
        raise
    if standing is None:
        trials.stop()
    else:
        terms = {**standing["terms"], "values": frozenset(standing["terms"]["values"])}
        trials.follow(standing["id"], TrialTerms(**terms), standing["ended"])
