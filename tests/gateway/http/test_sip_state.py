"""Registrations and trunks of the gateway, in ``/v1/health`` and ``/metrics``."""

from pathlib import Path
from typing import Any

import aiohttp

from sip_bridge.message.sip import response_to
from tests.gateway.http.api_gateway import api_gateway
from tests.sip_bridge.test_registration import Registrar
from tests.waiting import until


async def test_a_refused_registration_and_a_trunk_that_answers_are_shown(tmp_path: Path) -> None:
    registrar = Registrar()
    registrar.answers = [lambda request: response_to(request, 403)]
    await registrar.endpoint.start("127.0.0.1", 0)
    uri = f"sip:127.0.0.1:{registrar.endpoint.port}"
    sip: dict[str, Any] = {
        "port": 0,
        "rtp_ports": "43000-43999",
        "trunks": {"office": {"proxy": uri, "ping_s": 600, "addresses": ["127.0.0.1"]}},
        "registrations": [{"registrar": uri, "username": "bot", "trunk": "office"}],
    }
    try:
        async with api_gateway(tmp_path, sip=sip) as (_, _, url), aiohttp.ClientSession(url) as http:

            async def refused() -> dict[str, Any] | None:
                async with http.get("/v1/health") as answer:
                    health: dict[str, Any] = await answer.json()
                return health if health["registrations"][0]["status"] else None

            health = await until(refused, "the registrar's answer")
            expected = {"registrar": uri, "trunk": "office", "registered": False, "status": 403}
            assert health["registrations"] == [expected]
            proxies = [{"proxy": uri, "answers": True}]
            assert health["trunks"] == [{"trunk": "office", "answers": True, "proxies": proxies}]
            async with http.get("/metrics") as answer:
                lines = (await answer.text()).splitlines()
            assert f'talkspurt_sip_registered{{registrar="{uri}"}} 0.0' in lines
            assert 'talkspurt_sip_trunk_answers{trunk="office"} 1.0' in lines
            assert f'talkspurt_sip_proxy_answers{{proxy="{uri}",trunk="office"}} 1.0' in lines
    finally:
        await registrar.endpoint.close()
