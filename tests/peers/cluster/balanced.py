"""Two gateways for a load balancer, and what has to be so behind any of them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import TwilioCarrier
from talkspurt.simulator.manager import SimulatedManager
from tests.peers.live_server import Live, serve
from tests.waiting import PATIENCE_S, until

CONFIG = """
server: {drain_s: 60, trusted_proxies: [127.0.0.1]}
engine: {kind: tone}
carriers: {twilio: {verify: false}}
routes: {default: {}}
"""


async def two_gateways(stack: AsyncExitStack, folder: Path) -> list[Live]:
    return [await stack.enter_async_context(serve(folder / name, CONFIG)) for name in ("one", "two")]


async def share_calls(
    stack: AsyncExitStack, front: str, gateways: list[Live], taken_out: Callable[[], Awaitable[None]]
) -> None:
    """Calls go to both, and none is lost when the first gateway is told to stop.

    Args:
        front: the load balancer, ``ws://host:port``.
        taken_out: waits until the first gateway, which drains, gets no new call.
    """
    managers = [SimulatedManager(lambda call: None), SimulatedManager(lambda call: None)]
    for manager, live in zip(managers, gateways, strict=True):
        await manager.dial_in(f"{live.ws}/v1/dialogue?route=default")
        stack.push_async_callback(manager.aclose)
    legs: list[CarrierLeg] = []

    async def arrive(count: int) -> None:
        for _ in range(count):
            legs.append(CarrierLeg(TwilioCarrier(len(legs), {})))
            await legs[-1].connect(f"{front}/media/twilio/default", timeout_s=PATIENCE_S)
        await until(lambda: sum(len(manager.calls) for manager in managers) == len(legs), "setups")

    await arrive(4)
    assert [len(manager.calls) for manager in managers] == [2, 2], "the fewest connections"
    gateways[0].process.send_signal(signal.SIGTERM)
    await taken_out()
    await arrive(3)
    assert [len(manager.calls) for manager in managers] == [2, 5]
    turns = [call.speak("Still here.") for manager in managers for call in manager.calls.values()]
    await until(lambda: all(turn.outcome == "finished" for turn in turns), "speech in all calls")
    for leg in legs:
        leg.hang_up()
        await leg.aclose()
    await asyncio.wait_for(gateways[0].process.wait(), PATIENCE_S)
    assert gateways[0].process.returncode == 0
