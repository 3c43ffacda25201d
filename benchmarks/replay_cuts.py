"""What one tree's voice detection makes of hours of recorded sounds, faster than real time: a part of ``old_new.py``.

    PYTHONPATH=TREE:TREE/codecs python benchmarks/replay_cuts.py SOUNDS.npz HOURS

It runs the tree's own uplink (decoding, network, detector, echo) for 60 calls a scene, each of which hears us speak all
the time, and gives it every 20 ms a frame of ours and one of the caller's with their time. So nothing depends on this
machine's speed, and two trees get the same sounds to the byte, as long as they decide the same. What the gateway does
with a decision without a recogniser and with the settings as they come is done here: a suspicion suspends our voice, a
dismissal lets it go on, certain speech cuts the turn. The last line is JSON: of each scene what ``false_cuts.heard``
says, and where the cuts are.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from gateway.config import BargeInConfig, RouteConfig
from voicecodecs.registry import AudioFormat

try:
    from gateway.uplink.worker import UplinkWorker
except ImportError:  # 1d3c667 and before
    from gateway.uplink_worker import UplinkWorker  # type: ignore[import-not-found,no-redef]

CALLS = 60
FRAME_S = 0.02
SILENCE = b"\xff" * 160
BETWEEN_TURNS = 20
"""Frames."""
ECHO_DELAY = 6
GIVE_UP_S = 1.4
"""So long a suspicion suspends our voice at most (``barge_in.Rules.give_up_s``)."""
EVERY_S = (5.0, 7.0)
FOLLOWS_S = 2.0
"""Speech or a suspicion so soon after a sentence's beginning is because of it."""


def framed(payload: np.ndarray) -> list[bytes]:
    whole = payload.tobytes()
    return [whole[at : at + 160] for at in range(0, len(whole) - 159, 160)]


class Call:
    """One call: what we say, what its caller sends, and what the tree makes of it."""

    def __init__(self, number: int, scene: str, sounds: dict[str, list[list[bytes]]]) -> None:
        self.scene = scene
        self._rng = random.Random(f"{scene} {number}")
        self._turns, self._echoes = sounds["turns"], sounds["turns' echoes"]
        self._clips = sounds[scene] if scene in ("speech", "mhm") else []
        self._noise = sounds[scene][0] if scene in sounds and not self._clips else []
        self._at = number * len(self._noise) // CALLS
        self._turn, self._frame, self._pause = number % len(self._turns), 0, self._rng.randrange(100)
        self._heard = deque([SILENCE] * ECHO_DELAY)
        self._clip: list[bytes] = []
        self._next_clip = self._rng.uniform(0, EVERY_S[1])
        self._began: float | None = None
        self._suspended_until = 0.0
        self.now = 0.0
        self.spoken = self.said = self.hesitations = 0
        self.cuts: list[float] = []
        self.reacted_ms: list[float] = []

    @property
    def speaks(self) -> bool:
        return self._pause == 0

    def ours(self) -> bytes | None:
        """Our next frame, if there is one now."""
        echo, frame = SILENCE, None
        if self._pause:
            self._pause -= 1
        elif self.now >= self._suspended_until:
            frame, echo = self._turns[self._turn][self._frame], self._echoes[self._turn][self._frame]
            self.spoken += 1
            self._frame += 1
            if self._frame == len(self._turns[self._turn]):
                self._end_turn()
        self._heard.append(echo)
        return frame

    def callers(self) -> bytes:
        """What the caller sends now."""
        echo = self._heard.popleft()
        if self.scene == "echo":
            return echo
        if self._noise:
            self._at = (self._at + 1) % len(self._noise)
            return self._noise[self._at]
        if self.now >= self._next_clip:
            self._next_clip = self.now + self._rng.uniform(*EVERY_S)
            clip = self._rng.choice(self._clips)
            if self.speaks:
                self._clip, self._began = clip[::-1], self.now
                self.said += 1
        return self._clip.pop() if self._clip else SILENCE

    def _end_turn(self) -> None:
        self._turn, self._frame, self._pause = (self._turn + 1) % len(self._turns), 0, BETWEEN_TURNS

    def _react(self) -> None:
        if self._began is not None and self.now - self._began < FOLLOWS_S:
            self.reacted_ms.append((self.now - self._began) * 1000)
        self._began = None

    # -- what the uplink tells

    def on_speech_suspected(self, *, onset: float) -> None:
        if self.speaks:
            self._suspended_until = self.now + GIVE_UP_S
            self.hesitations += 1
            self._react()

    def on_speech_dismissed(self) -> None:
        self._suspended_until = 0.0

    def on_short_sound(self, *, onset: float, sound: Sequence[bytes]) -> None: ...

    def on_speech_started(self, *, onset: float) -> None:
        if self.speaks:
            self.hesitations -= self._suspended_until > self.now
            self.cuts.append(round(self.now, 2))
            self._react()
            self._end_turn()
        self._suspended_until = 0.0

    def on_speech_ended(self) -> None: ...

    def on_speech_resumed(self) -> None: ...


async def replay(path: str, hours: float) -> dict[str, Any]:
    with np.load(path) as file:
        sounds: dict[str, list[list[bytes]]] = {}
        for key in sorted(file.files):
            sounds.setdefault(key.partition(":")[0], []).append(framed(file[key]))
    scenes = [*(name for name in sounds if not name.startswith("turns")), "echo"]
    worker = UplinkWorker({"": RouteConfig()}, BargeInConfig())
    worker.close()  # its thread: the work is done here, step by step
    line = AudioFormat("PCMU")
    calls = [Call(number, scene, sounds) for scene in scenes for number in range(CALLS)]
    streams = [worker.open(str(number), line, line, "", call) for number, call in enumerate(calls)]
    when_heard = "heard_at" in inspect.signature(streams[0].spoke).parameters
    for stream in streams:
        stream.want(vad=True, pcm_rate=0)
    posted: list[Any] = []
    for step in range(round(hours * 3600 / CALLS / FRAME_S)):
        now = step * FRAME_S
        for call, stream in zip(calls, streams, strict=True):
            call.now = now
            if (frame := call.ours()) is not None:
                stream.spoke(frame, now=now, **({"heard_at": now} if when_heard else {}))
            stream.push(call.callers(), now=now)
        worker._work(posted.append)
        for tell in posted:
            tell()
        posted.clear()
    found = {}
    for name in scenes:
        of = [call for call in calls if call.scene == name]
        found[name] = {
            "spoken_hours": round(sum(call.spoken for call in of) * FRAME_S / 3600, 4),
            "utterances": sum(call.said for call in of),
            "cuts": sum(len(call.cuts) for call in of),
            "hesitations": sum(call.hesitations for call in of),
            "reacted_ms": [round(ms) for call in of for ms in call.reacted_ms],
            "cut_at": [call.cuts for call in of],
        }
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(replay(sys.argv[1], float(sys.argv[2])))))
