"""``docs/ivr.md``: its snippets are true, and a call of Twilio's goes from an IVR to the bot and back by them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from gateway.config import LimitsConfig
from gateway.dialogue.wire import decode
from gateway.http.call_api.attach import AttachBody
from talkspurt.config.settings import load
from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import TwilioCarrier
from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from tests.peers.live_server import Live, serve
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = (Path(__file__).parents[3] / "docs/ivr.md").read_text()
TOKEN = "carrier secret"
SECRETS = {"TWILIO_AUTH_TOKEN": TOKEN, "TALKSPURT_API_KEY": "k", "FREESWITCH_TOKEN": "t", "ESL_PASSWORD": "p"}
PUBLIC = "https://voice.example.com"
FORM = {"From": "+15550100", "To": "+15550101", "CallStatus": "in-progress"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.M | re.S)


async def test_messages_and_configurations_are_such(tmp_path: Path) -> None:
    dialogue, attach = blocks("json")
    setup, end = (json.loads(line) for line in dialogue.splitlines())
    assert setup["type"] == "setup"
    decode(json.dumps(end), limits=LimitsConfig(), multiplexed=False)
    assert AttachBody.model_validate_json(attach).dialect == "freeswitch"
    for number, text in enumerate(blocks("yaml")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        load(path, environment=SECRETS)


def xml(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ivr() -> AsyncIterator[str]:
    """The page's own handler, at work."""
    names: dict[str, Any] = {}
    exec(compile(blocks("python")[0], "docs/ivr.md", "exec"), names)
    app = web.Application()
    app.router.add_post("/after", names["after"])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(ivr: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    twilio = next(text for text in blocks("yaml") if "twilio" in text).replace("https://ivr.example.com", ivr)
    config = f"engine: {{kind: tone}}\n{twilio}"
    async with serve(tmp_path_factory.mktemp("ivr"), config, SECRETS) as running:
        yield running


class Twilio:
    """The carrier: carries out the verbs that it is told, and signs its requests."""

    def __init__(self, live: Live, number: int) -> None:
        self._form = FORM | {"CallSid": f"CA{number:032x}"}
        self._places = {"voice.example.com": live.http}

    async def redirect(self, url: str) -> ElementTree.Element:
        """Post the call's form to an address; its answer."""
        address = urlsplit(url)
        signed = url + "".join(name + value for name, value in sorted(self._form.items()))
        proof = base64.b64encode(hmac.new(TOKEN.encode(), signed.encode(), hashlib.sha1).digest()).decode()
        place = self._places[address.netloc] + url.partition(address.netloc)[2]
        async with aiohttp.ClientSession(headers={"X-Twilio-Signature": proof}) as http:
            async with http.post(place, data=self._form) as answer:
                assert answer.status == 200, await answer.text()
                return xml(await answer.text())


@pytest.mark.parametrize(("number", "result", "verb"), [(7, {"queue": "billing"}, "Dial"), (8, {}, "Hangup")])
async def test_a_call_goes_from_the_ivr_to_the_bot_and_back(
    live: Live, number: int, result: dict[str, str], verb: str
) -> None:
    calls: list[ManagedCall] = []
    manager = SimulatedManager(calls.append)
    await manager.dial_in(f"{live.ws}/v1/dialogue?route=default&access_token=k")
    twilio = Twilio(live, number)

    to_the_bot = xml(blocks("xml")[0]).find("Redirect")
    assert to_the_bot is not None and to_the_bot.text is not None
    answer = await twilio.redirect(to_the_bot.text)
    stream, then = answer.find("Connect/Stream"), answer.find("Redirect")
    assert stream is not None and then is not None and then.text is not None
    parameters = {p.get("name", ""): p.get("value", "") for p in stream.findall("Parameter")}
    leg = CarrierLeg(TwilioCarrier(number, parameters))
    url = live.ws + urlsplit(stream.get("url")).path  # type: ignore[operator]
    await leg.connect(url, timeout_s=PATIENCE_S)

    await until(lambda: calls, "setup")
    assert calls[0].setup["customParameters"] == {"account": "4711", "lang": "de"}
    calls[0].send("end", handoffData=json.dumps(result))
    await until(lambda: leg.closed_at is not None, "the end of the stream")

    assert (await twilio.redirect(then.text)).find(verb) is not None
    await leg.aclose()
    await manager.aclose()
