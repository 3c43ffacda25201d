"""``examples/hand_over.py`` and a whole gateway: one person declines, the next one accepts and hangs up."""

import asyncio
import json
import runpy
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from gateway.config import LimitsConfig
from gateway.dialogue.wire import decode, encode
from gateway.seams.messages import Outbound
from tests.gateway.call.joined.people import Talker, world
from tests.gateway.call.joined.test_bridge import B_HZ, bye
from tests.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "hand_over.py"
made_by_example: dict[str, Any] = runpy.run_path(str(EXAMPLE))


async def test_the_next_person_is_called_and_the_bot_comes_back(tmp_path: Path) -> None:
    async with world(tmp_path) as made, AsyncExitStack() as stack:
        second = stack.enter_context(Talker(made.made.sip.endpoint.port))  # type: ignore[union-attr]
        bot = made_by_example["HandOver"]([made.target, f"sip:bob@127.0.0.1:{second.port}"])
        said: list[str] = []
        loop = asyncio.get_running_loop()

        def answer(body: dict[str, Any]) -> None:
            for reply in bot.receive(body):
                said.append(reply.get("token", reply["type"]))
                message = decode(json.dumps(reply), limits=LimitsConfig(), multiplexed=False)[1]
                loop.call_soon(made.app.say, message)

        def told(message: Outbound) -> None:
            made.app.told.append(message)
            written = encode(message, extensions=True)
            if written is not None:
                answer(json.loads(written))

        made.app.send = told  # type: ignore[method-assign]
        answer({"type": "setup"})
        answer({"type": "prompt", "voicePrompt": "My invoice is wrong.", "last": True})
        await made.person.answers()
        await made.app.hears_of("answered")
        made.person.press(2)
        await made.app.hears_of("declined")
        await made.person.hung_up()
        made.person = second
        await made.person.answers()
        await until(lambda: made.app.events.count("answered") == 2, "the second answer")
        made.person.talk(B_HZ)
        made.person.press(1)
        await made.app.hears_of("accepted")
        await made.caller.until_hears(B_HZ)
        await bye(made)
        await made.app.hears_of("hangup")
        await until(lambda: not made.app.session.seat.joined)
        names = ("WELCOME", "WAIT", "transfer", "transfer", "BACK")
        assert said == [made_by_example.get(name, name) for name in names]
        assert not made.app.session.ending.decided


def test_the_caller_hears_if_no_one_is_free_and_may_ask_again() -> None:
    bot = made_by_example["HandOver"](["sip:a@b"])
    error = {"type": "error", "description": "transfer: the target was not reached: 486 busy"}
    for _ in range(2):
        wait, transfer = bot.receive({"type": "prompt", "voicePrompt": "Help.", "last": True})
        assert transfer["target"] == "sip:a@b" and "Help." in transfer["warm"]["briefing"]
        assert bot.receive({"type": "leg", "event": "busy"}) == []
        assert bot.receive(error) == [made_by_example["say"](made_by_example["NOT_NOW"])]
        assert bot.receive(error) == []
