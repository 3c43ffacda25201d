"""sipp calls a whole server: each scenario once, then together, over UDP and TCP, and through loss."""

from pathlib import Path

import pytest

from tests.peers.live_server import Live
from tests.peers.programs import needs_sipp
from tests.peers.sip.sipp import sipp
from tests.sip_bridge.phone import bridge
from tests.waiting import until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    needs_sipp,
]


async def nothing_left(live: Live) -> None:
    await until(lambda: live.metric_is("talkspurt_calls_active", 0, transport="sip"), "the calls' end")


@pytest.mark.parametrize("transport", ["udp", "tcp"])
@pytest.mark.parametrize("scenario", ["call", "hold", "codecs", "late_offer", "info", "options"])
async def test_scenario(server: tuple[Live, int], tmp_path: Path, scenario: str, transport: str) -> None:
    live, port = server
    await sipp(scenario, port, tmp_path, calls=3, transport=transport, pause_ms=300)
    await nothing_left(live)


async def test_cancel_while_it_rings(tmp_path: Path) -> None:
    async with bridge(ready=False) as made:
        await sipp("cancel", made.bridge.endpoint.port, tmp_path, calls=3)
        assert [told.closed for told in made.sessions] == [["cancelled"]] * 3


async def test_we_hang_up(server: tuple[Live, int], tmp_path: Path) -> None:
    live, port = server
    await sipp("hung_up", port, tmp_path, calls=2, service="100")
    await nothing_left(live)


async def test_messages_that_are_lost_on_the_way_do_not_end_calls(server: tuple[Live, int], tmp_path: Path) -> None:
    live, port = server
    await sipp("lossy", port, tmp_path, calls=20, concurrent=20, rate=20)
    await nothing_left(live)


async def test_calls_beside_each_other_leave_nothing_behind(server: tuple[Live, int], tmp_path: Path) -> None:
    live, port = server
    await sipp("call", port, tmp_path / "warm", calls=5)
    await nothing_left(live)
    files = live.open_files()
    await sipp("call", port, tmp_path / "calls", calls=40, concurrent=20, rate=10, pause_ms=1500)
    await nothing_left(live)
    await until(lambda: live.open_files() <= files + 2, "the calls' sockets to be closed")
    assert await live.metric("talkspurt_rtp_jitter_seconds_count") >= 40
