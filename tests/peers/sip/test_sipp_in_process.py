"""sipp against parts of the bridge in this process: the endpoint that it calls, and a hundred of our calls to it."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.seams.originate import CallOrder
from tests.peers.ports import free_port, is_free
from tests.peers.programs import needs_sipp
from tests.peers.sip.sipp import SCENARIOS, sipp
from tests.sip_bridge.io.test_endpoint import listening
from tests.sip_bridge.phone import Phone, bridge
from tests.sip_bridge.test_outgoing import fresh, next_of, reply
from tests.waiting import PATIENCE_S, until

pytestmark = needs_sipp


@asynccontextmanager
async def own_scenario(folder: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """sipp with a scenario that it brings along."""
    process = await asyncio.create_subprocess_exec(
        *("sipp", *arguments, "-i", "127.0.0.1", "-mi", "127.0.0.1", "-nostdin", "-timeout", f"{PATIENCE_S:g}s"),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@pytest.mark.parametrize("transport", ["u1", "t1"])
async def test_sipp_calls_the_endpoint(tmp_path: Path, transport: str) -> None:
    """INVITE, ACK, BYE."""
    async with listening(burst=10_000) as user:
        target = f"127.0.0.1:{user.endpoint.port}"
        pace = ("-m", "50", "-l", "20", "-r", "100", "-d", "50")
        async with own_scenario(tmp_path, target, "-sn", "uac", "-t", transport, *pace) as sipp:
            assert await sipp.wait() == 0
        assert (user.calls, user.acks, user.dialogs) == (50, 50, {})
        assert user.endpoint.counts["unreadable"] == 0


async def test_a_hundred_calls_to_sipp_are_all_answered_and_leave_nothing(tmp_path: Path) -> None:
    port = free_port()
    # Timers near the real ones: what is asserted must not be that this machine is quick.
    timeouts = {"t1_s": 0.1, "media_s": 60}
    async with (
        own_scenario(tmp_path, "-sn", "uas", "-p", str(port)),
        bridge(timeouts=timeouts, allowed_targets=["*@127.0.0.1"]) as made,
    ):
        await asyncio.sleep(0)  # the endpoint starts its own tasks
        files, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
        attempts = []
        for _ in range(100):
            attempts.append(await made.bridge.outgoing.place(CallOrder(target=f"sip:x@127.0.0.1:{port}")))
            await asyncio.sleep(0.01)  # all in one instant would overflow the socket, which is not yet read
        await until(lambda: all(attempt.state in ("answered", "failed") for attempt in attempts), "the answers")
        assert [attempt for attempt in attempts if attempt.state == "failed"] == []
        for told in made.sessions:
            told.call.hang_up("end")
        await until(lambda: not any(made.bridge.kept.values()), "the end of all calls")
        assert len(os.listdir("/proc/self/fd")) <= files
        assert len(asyncio.all_tasks()) <= tasks


async def test_a_caller_that_requires_reliable_ringing_is_answered_after_its_prack(tmp_path: Path) -> None:
    """RFC 3262, as sipp reads it."""
    async with bridge(ready=False, timeouts={"session_s": 0}) as made:
        calling = asyncio.create_task(sipp("prack", made.bridge.endpoint.port, tmp_path))
        await until(lambda: made.sessions)
        await until(lambda: made.session.call.protocol.reliable.deadline() is None, "the PRACK")
        made.session.ready.set_result(None)
        await calling
        assert made.session.closed == ["hangup"]


async def test_a_caller_that_asks_for_a_call_hears_its_outcome(tmp_path: Path) -> None:
    """RFC 3515, as sipp reads it."""
    async with bridge(trunk={"transfers": "follow"}, allowed_targets=["*@127.0.0.1"]) as made:
        with Phone(made.bridge.endpoint.port) as callee:
            port = made.bridge.endpoint.port
            calling = asyncio.create_task(sipp("refer", port, tmp_path, service=f"x@127.0.0.1:{callee.port}"))
            invite = await fresh(callee, "INVITE")
            assert invite.headers.get("Referred-By") == "<sip:sales@pbx.example>"
            reply(callee, invite, 486)
            await next_of(callee, "ACK")
            await calling
            assert made.session.closed == ["hangup"]


async def test_a_second_call_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """RFC 3891, as sipp reads it."""
    async with bridge() as made:
        await sipp("replaces", made.bridge.endpoint.port, tmp_path)
        assert made.session.closed == ["hangup"] and made.session.call_sid.startswith("second///")


@pytest.mark.parametrize("scenario", ["forks", "early_update"])
async def test_a_callee_forks_or_changes_the_codec_before_it_answers(tmp_path: Path, scenario: str) -> None:
    """Two answers, of which the second is ended; UPDATE in an early dialog."""
    port, by_update = free_port(), scenario == "early_update"
    arguments = ("-sf", str(SCENARIOS / f"{scenario}.xml"), "-p", str(port), "-m", "1")
    trunk = {"proxy": f"sip:127.0.0.1:{port}"}
    async with (
        own_scenario(tmp_path, *arguments) as sipp,
        bridge(allowed_targets=["*@127.0.0.1"], trunk=trunk) as made,
    ):
        await until(lambda: not is_free(port), "sipp")
        attempt = await made.bridge.outgoing.place(CallOrder(target="+4930111", trunk="office"))
        await until(lambda: attempt.state in ("answered", "failed"), "the answer")
        assert (attempt.state, attempt.status) == ("answered", 200)
        assert made.session.call.outbound.encoding == "PCMA"
        if by_update:
            made.session.call.hang_up("end")
        else:
            await until(lambda: made.session.closed == ["hangup"], "the end of the second answer and of the call")
        assert await sipp.wait() == 0
