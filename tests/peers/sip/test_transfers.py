"""A phone of others asks the gateway by REFER to call someone, and is asked by it."""

from pathlib import Path

import pytest

from tests.peers.programs import needs_baresip
from tests.peers.sip.baresip import baresip
from tests.sip_bridge.phone import bridge
from tests.waiting import until

pytestmark = needs_baresip


@pytest.mark.parametrize("by_us", [False, True], ids=["by the phone", "by the gateway"])
async def test_a_transfer_reaches_the_other_phone(by_us: bool, tmp_path: Path) -> None:
    trunk = {"transfers": "follow"}
    async with (
        bridge(trunk=trunk, allowed_targets=["*@127.0.0.1"]) as made,
        baresip(tmp_path / "phone") as phone,
        baresip(tmp_path / "other", account=";answermode=auto") as other,
    ):
        phone.command("dial", f"sip:bot@127.0.0.1:{made.bridge.endpoint.port}")
        await phone.until("CALL_ESTABLISHED")
        target = f"sip:alice@127.0.0.1:{other.port}"
        if by_us:
            (told,) = made.sessions
            told.call.transfer(target)
            await until(lambda: made.refers, "the outcome")
            assert made.refers in ([("sent", "completed")], [("sent", "unknown")])  # it may hang up before it tells
            assert told.transferred == [""] or told.closed == ["transferred"]
        else:
            phone.command("transfer", target)
            await until(lambda: len(made.sessions) == 2, "the call for the phone")
            assert made.refers == [("received", "accepted")]
        await other.until("CALL_ESTABLISHED")
