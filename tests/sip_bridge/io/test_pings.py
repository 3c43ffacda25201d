"""Trunks that are asked whether they are alive, and calls that come by a registration."""

import asyncio

import pytest

from gateway.errors import Rejected
from gateway.seams.originate import CallOrder
from tests.sip_bridge.phone import FAST, Phone, bridge, until


async def test_a_trunk_that_does_not_answer_gets_no_calls_until_it_does() -> None:
    with Phone(9) as proxy:
        trunk = {"proxy": f"sip:127.0.0.1:{proxy.port}", "ping_s": 0.05}
        async with bridge(timeouts=FAST, trunk=trunk, allowed_targets=["*@*"]) as made:
            proxy.server = ("127.0.0.1", made.bridge.endpoint.port)
            options = await proxy.asked("OPTIONS")
            proxy.answer(options, 404)
            assert made.bridge.reachable("office")  # an answer is an answer
            order = CallOrder(target="100", route="default", trunk="office")
            await until(lambda: not made.bridge.reachable("office"))
            with pytest.raises(Rejected, match="does not answer"):
                await made.bridge.outgoing.place(order)
            while not made.bridge.reachable("office"):
                proxy.answer(await proxy.asked("OPTIONS"), 200)
            await made.bridge._pings["office"].close()


async def test_calls_come_by_a_registration_and_not_without_it() -> None:
    with Phone(9) as registrar:
        registration = {"registrar": f"sip:127.0.0.1:{registrar.port}", "username": "bot", "trunk": "carrier"}
        trunks = {"carrier": {}}
        async with bridge(trunk={"addresses": ["192.0.2.1"]}, registrations=[registration], trunks=trunks) as made:
            registrar.server = ("127.0.0.1", made.bridge.endpoint.port)
            register = await registrar.asked("REGISTER")
            registrar.send(registrar.request("INVITE"))
            await until(lambda: made.rejected == ["unknown"])
            registrar.answer(register, 200, ("Contact", f"{register.headers.get('Contact')};expires=600"))
            await until(lambda: made.bridge.registrations[0].registered)
            with Phone(registrar.server[1]) as phone:
                await phone.call()
                assert made.session.call.trunk_name == "carrier"
                await phone.bye()
                phone.to_tag, phone.target = "", phone.target.replace("bot", "another")
                phone.send(phone.request("INVITE"))
                await until(lambda: made.rejected == ["unknown"] * 2)
            closing = asyncio.create_task(made.bridge.registrations.pop().close())
            while (register := await registrar.asked("REGISTER")).headers.get("Expires") != "0":
                pass
            registrar.answer(register, 200)
            await closing
