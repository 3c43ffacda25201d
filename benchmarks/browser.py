"""From a typed turn to its sound, by a browser's own clock.

    python benchmarks/browser.py --turns 30 --json browser.json

Headless Chromium calls a real server on this machine and types turns of the standard load, each into silence. The clock
(``performance.now()``) starts where the page hands the turn to its data channel, and stops where the page's
MediaStreamTrackProcessor is handed the first 10 ms above -50 dBov: after network, jitter buffer and decoder, before a
sound card. (WebAudio's analyser would add its own 200 ms in a headless browser.) Also: ``told_ms``, until the page knew
from the server that the sound had begun, ``first_packet_ms`` by the server's clock, and how long the jitter buffer held
the samples of each turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from talkspurt.bench.load import STANDARD, TurnSupply, read_load
from talkspurt.bench.results import commit, machine
from talkspurt.bench.server_process import overrides, serving
from talkspurt.simulator.figures import summary

ROUTE = "bench"

CALL = """
const [route, done] = arguments;
(async () => {
  const {Call} = await import("/web/talkspurt.js");
  const call = window.call = new Call({route, microphone: false});
  await call.start();
  window.processor = new MediaStreamTrackProcessor({track: call.audio.srcObject.getAudioTracks()[0]});
  const reader = processor.readable.getReader();
  window.waiting = null;
  (async () => {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      const wave = new Float32Array(value.numberOfFrames);
      value.copyTo(wave, {planeIndex: 0, format: "f32-planar"});
      value.close();
      const power = wave.reduce((sum, x) => sum + x * x, 0) / wave.length;
      if (power > 1e-5 && waiting) waiting(performance.now());
    }
  })();
  await new Promise(settled => setTimeout(settled, 1000));
})().then(() => done(""), error => done(String(error)));
"""

TURN = """
const [text, pause_s, done] = arguments;
(async () => {
  // Before the first packet there is no report.
  const none = {jitterBufferDelay: 0, jitterBufferEmittedCount: 0, concealedSamples: 0, silentConcealedSamples: 0};
  const reports = async () => [...(await call.connection.getStats()).values()];
  const report = async () => (await reports()).find(one => one.type === "inbound-rtp") ?? {packetsLost: 0, ...none};
  await new Promise(silent => setTimeout(silent, pause_s * 1000));
  const before = await report();
  const sound = new Promise(heard => { window.waiting = heard; });
  const events = {};
  const over = new Promise(end => call.on("turn", ({event, ...data}) => {
    events[event] = {at: performance.now(), ...data};
    if (event === "finished" || event === "failed") end();
  }));
  const begun = performance.now();
  call.text(text);
  const sound_ms = await sound - begun;
  window.waiting = null;
  await over;
  const after = await report();
  return {
    sound_ms,
    told_ms: events.started.at - begun,
    first_packet_ms: events.started.firstPacketMs,
    stages: events.started.stages,
    gaps: events.finished?.gaps ?? -1,
    buffer_ms: (after.jitterBufferDelay - before.jitterBufferDelay)
      / (after.jitterBufferEmittedCount - before.jitterBufferEmittedCount) * 1000,
    concealed: after.concealedSamples - after.silentConcealedSamples
      - before.concealedSamples + before.silentConcealedSamples,
    lost: after.packetsLost - before.packetsLost,
  };
})().then(result => done([result, ""]), error => done([null, String(error)]));
"""


def measure(url: str, load: TurnSupply, turns: int, pause_s: float) -> list[dict[str, Any]]:
    """Type ``turns`` turns into one call; what was measured of each. The first two are not: they open the way."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "autoplay-policy=no-user-gesture-required"):
        options.add_argument(f"--{flag}")
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.set_script_timeout(60)
        driver.get(f"{url}/phone")
        failure = driver.execute_async_script(CALL, ROUTE)
        if failure:
            raise SystemExit(f"no call: {failure}")
        rows: list[dict[str, Any]] = []
        while len(rows) < turns + 2:
            row, failure = driver.execute_async_script(TURN, load.next().text, pause_s)
            if failure:
                raise SystemExit(f"turn {len(rows) + 1}: {failure}")
            rows.append(row)
            if sys.stderr.isatty():
                print(f"\r{len(rows)} of {turns + 2} turns", end="", file=sys.stderr, flush=True)
        driver.execute_script("call.hangup()")
        return rows[2:]
    finally:
        driver.quit()


async def run(args: argparse.Namespace) -> dict[str, Any]:
    load = read_load(STANDARD)
    async with serving(args.config, overrides(route=ROUTE, calls=1)) as server:
        rows = await asyncio.to_thread(measure, f"http://{server.address}", load, args.turns, args.pause_s)
    for row in rows:  # from the server's first frame to the page: network, jitter buffer, decoder
        row["path_ms"] = row["sound_ms"] - row["told_ms"]
    names = ("sound_ms", "path_ms", "told_ms", "first_packet_ms", "buffer_ms")
    return {
        "commit": commit(),
        "machine": machine(),
        "settings": {"load": load.name, "turns": args.turns, "pause_s": args.pause_s, "browser": "chromium, headless"},
        "steps": [
            {
                **{name: summary([row[name] for row in rows]) for name in names},
                "stages_ms": {stage: summary([row["stages"][stage] for row in rows]) for stage in rows[0]["stages"]},
                "concealed_samples": sum(row["concealed"] for row in rows),
                "packets_lost": sum(row["lost"] for row in rows),
                "gaps": sum(row["gaps"] for row in rows),
                "sound_each_ms": [round(row["sound_ms"], 1) for row in rows],
            }
        ],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--pause-s", type=float, default=1.0, help="silence before each turn")
    parser.add_argument("-c", "--config", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = asyncio.run(run(arguments))
    print(json.dumps(result["steps"][0], indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result) + "\n")
