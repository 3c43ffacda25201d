"""A copy of a call at a session recording server that sipp plays."""

from pathlib import Path

from tests.peers.ports import free_port, is_free
from tests.peers.programs import needs_sipp
from tests.peers.sip.sipp import SCENARIOS
from tests.peers.sip.test_sipp_in_process import own_scenario
from tests.sip_bridge.phone import bridge
from tests.sip_bridge.siprec.test_client import CALL, stereo
from tests.waiting import until


@needs_sipp
async def test_sipp_takes_both_streams_and_sees_the_end(tmp_path: Path) -> None:
    port, lost = free_port(), list[str]()
    arguments = ("-sf", str(SCENARIOS / "recorder.xml"), "-p", str(port), "-m", "1")
    async with own_scenario(tmp_path, *arguments) as sipp, bridge() as made:
        await until(lambda: not is_free(port))
        recording = made.bridge.recordings.record(CALL, f"sip:srs@127.0.0.1:{port}", rate=16000, on_lost=lost.append)
        await until(lambda: recording.dialog is not None or lost)
        for at in range(20):
            recording.put(stereo(1, at=at * 320))
        recording.end()
        assert await sipp.wait() == 0 and lost == []
