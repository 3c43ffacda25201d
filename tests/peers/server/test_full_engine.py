"""An engine that is full: the turn is refused with the reason, the call continues."""

from pathlib import Path

from tests.peers.live_server import TestCall, serve
from tests.waiting import until

CONFIG = """
server: {drain_s: 1}
engine: {kind: tone, speech: {max_utterances: 1}}
carriers: {twilio: {verify: false}}
routes: {first: {}, second: {}}
"""


async def test_a_turn_too_many_is_refused_with_a_reason_and_the_call_speaks_on(tmp_path: Path) -> None:
    async with (
        serve(tmp_path, CONFIG) as live,
        TestCall(live, "first") as first,
        TestCall(live, "second", number=2) as second,
    ):
        long = first.call.speak("This is being said for a long time. " * 20)
        await until(lambda: long.reported.get("event") == "started" or "firstPacketMs" in long.reported, "speech")
        refused = await second.spoken("No one has a place for this.")
        assert (refused.outcome, refused.reported["code"]) == ("failed", "RESOURCE_EXHAUSTED")
        (error,) = (message for message in second.messages if message["type"] == "error")
        assert error["code"] == "RESOURCE_EXHAUSTED" and error["turn"] == refused.turn
        assert "speech.max_utterances" in error["description"]

        first.call.send("cancel", turn=long.turn)
        await until(lambda: long.outcome == "interrupted", "the cut")
        await until(lambda: live.metric_at_least("talkspurt_engine_freed_seconds_count", 1), "the place")
        again = await second.spoken("Now there is one.")
        assert again.outcome == "finished" and not second.call.ended
