"""A gateway with the embedded voice and several simulated calls that talk all the time: for looking at the console."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from talkspurt.simulator.carrier_leg import CarrierLeg
from talkspurt.simulator.carriers import CARRIERS
from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from tests.peers.live_server import Live, serve
from tests.waiting import PATIENCE_S, until

CONFIG = """
server: {port: 0, drain_s: 0}
routes:
  support: {}
  orders: {}
  survey: {}
  default: {dialogue: {script: SCRIPT}, recogniser: auto, recording: true}
calls: {folder: FOLDER/calls, keep_text: true}
recording: {folder: FOLDER/recordings}
carriers:
"""

CALLS = (("twilio", "support"), ("telnyx", "orders"), ("vonage", "survey"), ("freeswitch", "support"))

PAST = ((4, "+15550117"), (9, "+493012345678"), (14, "+442079460018"))
"""The past calls: length in seconds and caller."""

SENTENCES = (
    "Your order number {} was shipped on Friday and should arrive by Monday. Would you like the tracking number?",
    "Thank you for calling. I can see invoice {} on your account, which is due tomorrow; shall I send it again?",
    "You have case {}. On a scale from one to five, how satisfied were you with the visit of our technician?",
    "Your appointment {} is now on Thursday at half past nine. You will get a message to confirm it.",
    "One moment please, I am looking up part {} for you. It is in stock, in our main warehouse.",
)
"""With a number that is never the same: what was spoken before comes from the engine's cache, faster than speech."""


@asynccontextmanager
async def busy_gateway(folder: Path, *, calls: int = len(CALLS), cut_share: float = 0.3) -> AsyncIterator[Live]:
    """Run it; ``cut_share`` of the turns are cancelled in their middle."""
    verify = "".join(f"  {name}: {{verify: false}}\n" for name, _ in CALLS)
    script = str(Path("configs/demo-script.yaml").resolve())
    config = CONFIG.replace("SCRIPT", script).replace("FOLDER", str(folder.resolve())) + verify
    async with serve(folder, config) as live, asyncio.TaskGroup() as tasks:
        chances = random.Random(4)
        talking: list[asyncio.Task[None]] = []

        def begin(call: ManagedCall) -> None:
            talking.append(tasks.create_task(_talk(call, chances, cut_share)))

        managers = [SimulatedManager(begin) for _ in range(3)]
        legs = []
        try:
            for manager, route in zip(managers, ("support", "orders", "survey"), strict=True):
                await manager.dial_in(f"{live.ws}/v1/dialogue?route={route}")
            for number, (dialect, route) in enumerate(itertools.islice(itertools.cycle(CALLS), calls), 1):
                leg = CarrierLeg(CARRIERS[dialect](number, {}))
                await leg.connect(f"{live.ws}/media/{dialect}/{route}", timeout_s=PATIENCE_S)
                legs.append(leg)
            await until(lambda: len(talking) == calls, "all calls")
            async with asyncio.TaskGroup() as ended:
                for number, (lasts_s, caller) in enumerate(PAST, 100):
                    ended.create_task(_call_and_hang_up(live, number, lasts_s, caller))
            yield live
        finally:
            for task in talking:
                task.cancel()
            for leg in legs:
                await leg.aclose()
            for manager in managers:
                await manager.aclose()


async def _call_and_hang_up(live: Live, number: int, lasts_s: float, caller: str) -> None:
    _, route = CALLS[number % 3]
    leg = CarrierLeg(CARRIERS["twilio"](number, {"talkspurt.From": caller, "talkspurt.To": "+15550100"}))
    await leg.connect(f"{live.ws}/media/twilio/{route}", timeout_s=PATIENCE_S)
    await asyncio.sleep(lasts_s)
    leg.hang_up()
    await leg.aclose()


async def _talk(call: ManagedCall, chances: random.Random, cut_share: float) -> None:
    while not call.ended:
        await asyncio.sleep(chances.uniform(0.2, 3))
        turn = call.speak(chances.choice(SENTENCES).format(chances.randrange(1000, 10000)))
        if chances.random() < cut_share:
            await asyncio.sleep(chances.uniform(1, 4))
            call.send("cancel")
        while not turn.outcome and not call.ended:
            await asyncio.sleep(0.05)
