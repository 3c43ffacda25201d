"""A phone of baresip-python that dials, presses keys, and writes down what it hears.

    python -m tests.peers.sip.baresip_phone OUT.wav URI CODEC KEYS ACCOUNT_PARAMETER...

A process of its own: its C thread would take the tests along.
"""

import asyncio
import sys
import wave

from baresip import Account, AudioNotActive, AudioRestarted, CallState, Config, Event, Runtime, UserAgent

from tests.waiting import PATIENCE_S


async def main(out: str, uri: str, codec: str, keys: str, *parameters: str) -> None:
    runtime = Runtime()
    await runtime.start(Config(net_interface="127.0.0.1"))
    account = Account(
        "phone", "127.0.0.1", "", reg_interval=0, audio_codecs=(codec,), dtmf_mode="rtpevent", extra_params=parameters
    )
    phone = await UserAgent.create(runtime, account)
    # Not ``call.wait_established``: an answer that comes in the same turn of the loop as the call itself is lost to it.
    answered = asyncio.Event()
    runtime.subscribe(lambda event: answered.set() if event.event is Event.CALL_ESTABLISHED else None)
    call = await phone.dial(uri)
    async with asyncio.timeout(PATIENCE_S):
        await answered.wait()
    heard, format_ = bytearray(), (0, 0)
    pressing = asyncio.create_task(call.send_dtmf(keys))
    while call.state is not CallState.CLOSED:
        try:
            info = call.audio.info()
            format_ = (info.rx_channels, info.rx_sample_rate) if info.rx_ready else format_
            while piece := call.audio.read(9600):
                heard += piece
        except (AudioNotActive, AudioRestarted):  # its own re-INVITE right after the answer, or the end
            pass
        await asyncio.sleep(0.01)
    await pressing
    with wave.open(out, "wb") as file:
        file.setparams((format_[0], 2, format_[1], 0, "NONE", ""))
        file.writeframes(heard)
    await runtime.close()


asyncio.run(main(*sys.argv[1:]))
