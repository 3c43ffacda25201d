"""The default lead covers short stops of this machine: the caller hears none of them."""

import pytest

from gateway.config import PlayoutConfig
from gateway.media.playout import Playout, Track
from talkspurt.simulator.carrier_playout import CarrierPlayout

P = 0.02


@pytest.mark.parametrize(("stall_ms", "gaps"), [(0, 0), (98, 0), (140, 1)])
def test_a_stall_that_the_default_lead_covers_is_no_gap_at_the_carrier(stall_ms: int, gaps: int) -> None:
    made = Playout(ptime_s=P, lead_s=PlayoutConfig().lead_ms / 1000)
    track = Track()
    track.push([bytes(160)] * 100, now=10.0, ptime_s=P)
    track.done = True
    made.add(track)
    carrier = CarrierPlayout(10.0)
    dry = []
    for ms in range(0, 2500, 2):
        if not 300 <= ms < 300 + stall_ms:
            while (frame := made.pop_due(10.0 + ms / 1000)) is not None:
                dry.append(carrier.write(frame, now=10.0 + ms / 1000))
    assert len(dry) == 100
    assert sum(samples > 0 for samples in dry) == gaps
