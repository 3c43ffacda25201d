"""A small acceptance: few short calls, one restart of each kind. What ``python -m tests.peers.acceptance`` measures
besides, gaps and times, is a matter of the machine."""

from __future__ import annotations

from pathlib import Path

from tests.peers.acceptance import rows
from tests.peers.acceptance.callers import SETUP_S, Callers
from tests.peers.acceptance.service import Service
from tests.peers.programs import needs_envoy, needs_kamailio, needs_postgres, needs_redis
from tests.waiting import until


@needs_envoy
@needs_kamailio
@needs_postgres
@needs_redis
async def test_no_call_is_lost_when_each_process_is_restarted_in_turn(tmp_path: Path) -> None:
    callers = Callers(6, 3.0)
    try:
        async with Service(tmp_path, await callers.manager.listen(), longest_call_s=SETUP_S) as service:
            run = rows.Acceptance(service, callers, alone=False)
            callers.start(service.front, service.sip_front)
            await until(lambda: {call.kind for call in callers.live} == {"twilio", "sip"}, "calls by both ways")
            seen = await run.row(
                rows.restart_engine(0),
                rows.restart_redis,
                rows.restart_postgres,
                rows.restart_kamailio,
                rows.restart_envoy,
                rows.restart_gateway(0),
            )
            assert not seen["wrong"], seen
            await callers.stop()
            kept = await run.each_has_one_record()
            assert not kept["wrong"] and kept["calls"] > callers.places, kept
            assert "Traceback" not in service.logged()
    finally:
        await callers.aclose()
