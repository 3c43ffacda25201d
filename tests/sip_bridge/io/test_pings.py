"""Trunks that are asked whether they are alive, and calls that come by a registration."""

import asyncio

import pytest

from gateway.errors import Rejected
from gateway.seams.originate import CallOrder
from tests.sip_bridge.phone import Phone, bridge, until
from tests.sip_bridge.virtual_bridge import FAR, VirtualBridge


@pytest.mark.virtual_time
async def test_a_trunk_that_does_not_answer_gets_no_calls_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async def listening(*_: object) -> None: ...

    world = VirtualBridge(trunk={"proxy": f"sip:{FAR[0]}:{FAR[1]}", "ping_s": 30})
    made = world.bridge
    monkeypatch.setattr(made.endpoint, "start", listening)
    world.answers["OPTIONS"] = 404
    await made.start()
    await world.run(100)
    assert len(world.sent) == 4 and made.hops.reachable("office")  # an answer is an answer
    world.answers["OPTIONS"] = None
    await world.run(100)
    assert not made.hops.reachable("office")
    with pytest.raises(Rejected, match="does not answer"):
        await made.outgoing.place(CallOrder(target="100", route="default", trunk="office"))
    world.answers["OPTIONS"] = 200
    await world.run(100)
    assert made.hops.reachable("office")
    await made._pings["office"].close()


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
            with Phone(registrar.server[1], address="127.0.0.2") as stranger:
                stranger.send(stranger.request("INVITE"))
                await until(lambda: made.rejected == ["unknown"] * 2)
            closing = asyncio.create_task(made.bridge.registrations.pop().close())
            while (register := await registrar.asked("REGISTER")).headers.get("Expires") != "0":
                pass
            registrar.answer(register, 200)
            await closing
