"""The WebRTC comparison: each server is really called, and the verdict is arithmetic."""

import pytest

from talkspurt.bench.webrtc import step, verdict
from talkspurt.bench.webrtc_server import MODES


@pytest.mark.parametrize("mode", MODES)
async def test_every_server_speaks_to_the_receiver(mode: str) -> None:
    figures = await step(mode, 3, 1.0, core=None)
    assert figures["packets_share"] > 0  # how many in a second of its own is the machine's affair
    assert figures["decoded"] > 0 and figures["undecodable"] == 0
    assert figures["gap_error_ms"]["n"] > 0 and figures["cpu_us_per_packet"] > 0


def test_the_verdict_takes_the_most_calls_that_passed() -> None:
    def made(server: str, calls: int, passed: bool, cost: float) -> dict[str, object]:
        return {"server": server, "calls": calls, "passed": passed, "cpu_us_per_packet": cost}

    steps = [
        made("aiortc", 20, True, 300.0),
        made("aiortc", 40, False, 320.0),
        made("gateway", 100, True, 30.0),
        made("gateway", 200, True, 32.0),
        made("gateway", 400, False, 31.0),
    ]
    found = verdict(steps)
    assert found["servers"]["gateway"] == {"calls": 200, "cpu_us_per_packet": 31.0}
    assert found["gateway_against"] == {"aiortc": {"calls": 10.0, "cpu": 10.0}}
