"""A live call in REST: its text while it is heard, and its figures."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.gateway.http.api_gateway import api_gateway
from tests.peers.live_server import Live, TestCall
from tests.waiting import until

TEXT = "One two three four five six seven eight nine ten."


class Watched:
    """A simulated call, and its view."""

    def __init__(self, call: TestCall, http: aiohttp.ClientSession) -> None:
        self.call = call
        self._http = http

    async def view(self) -> dict[str, Any]:
        async with self._http.get(f"/v1/calls/{self.call.call.session_id}") as answer:
            assert answer.status == 200
            return dict(await answer.json())

    async def until(self, **fields: Any) -> dict[str, Any]:
        view: dict[str, Any] = {}

        async def shown() -> bool:
            nonlocal view
            view = await self.view()
            return fields.items() <= view.items()

        await until(shown, f"{fields}")
        return view


@asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[Watched]:
    sections: dict[str, Any] = {"carriers": {"twilio": {"verify": False}}, "routes": {"default": {}}}
    async with api_gateway(folder, **sections) as (_, _, url), aiohttp.ClientSession(url) as http:
        live = Live(url.removeprefix("http://"), None, folder)  # type: ignore[arg-type]  # the same process
        async with TestCall(live, "default") as call:
            yield Watched(call, http)


async def test_the_text_moves_from_queued_to_played_as_it_is_heard(tmp_path: Path) -> None:
    async with watched(tmp_path) as watch:
        view = await watch.view()
        assert (view["transport"], view["state"], view["turn"], view["playedText"]) == ("twilio", "listening", "", "")
        turn = watch.call.call.speak(TEXT)
        behind = watch.call.call.speak("And more.")
        seen = []
        while not turn.outcome:
            view = await watch.view()
            if view["turn"] == turn.turn:
                seen.append(view["playedText"])
                assert view["playedText"] + view["queuedText"] == f"{TEXT}\nAnd more."[: len(TEXT) + 10]
                assert view["state"] in ("speaking", "draining")
            await asyncio.sleep(0.05)
        assert len(set(seen)) >= 4 and seen == sorted(seen, key=len), "word by word"
        await until(lambda: behind.outcome, "the end of the second turn")
        view = await watch.until(turn=behind.turn, outcome="finished")
        assert (view["playedText"], view["queuedText"], view["turns"]) == ("And more.", "", 2)
        assert len(view["firstPacketMs"]) == 1, "the second one waited for the first, which is no latency"


async def test_a_cut_turn_keeps_what_was_heard_of_it(tmp_path: Path) -> None:
    async with watched(tmp_path) as watch:
        turn = watch.call.call.speak(TEXT)
        await until(lambda: watch.call.leg.messages > 30, "speech")
        watch.call.call.send("cancel")
        await until(lambda: turn.outcome and turn.heard_text, "the interrupt")
        view = await watch.until(turn=turn.turn, outcome="interrupted")
        assert 0 < len(view["playedText"]) < len(TEXT)
        assert (view["playedText"], view["queuedText"], view["state"]) == (turn.heard_text, "", "listening")
        assert view["lastCutMs"] >= 0
