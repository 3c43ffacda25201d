"""One server for the calls of a module, and ears for what it says."""

import re
import wave
from collections.abc import AsyncIterator, Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from tests.peers.live_server import Live, serve
from tests.peers.sip.baresip import free_port
from voicecodecs.pcm import to_float32
from voicecodecs.resample import Resampler

SENTENCE = "The quick brown fox jumps over the lazy dog, and then it sleeps under a tree until the morning."

CONFIG = """
sip:
  port: {port}
  rtp_ports: 44000-44399
  trunks:
    phones:
      addresses: [127.0.0.1]
      numbers: {{"100": speak, "200": keys}}
routes:
  default:
    welcome_greeting: Hello.
    dialogue: {{script: listen.yaml}}
  speak:
    dialogue: {{script: speak.yaml}}
  keys:
    dialogue: {{script: keys.yaml}}
"""

LISTEN = """
start: one
steps:
  one:
    - gather: {timeout_s: 60, max_digits: 20, variable: typed, otherwise: one}
    - goto: one
"""

SPEAK = f"""
start: one
steps:
  one:
    - say: {SENTENCE}
    - hang_up
"""

KEYS = """
start: one
steps:
  one:
    - gather: {timeout_s: 30, max_digits: 3, variable: typed, otherwise: bye}
    - say: You typed {typed:spaced}.
    - hang_up
  bye:
    - hang_up
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Live, int]]:
    """The server and its SIP port."""
    folder = tmp_path_factory.mktemp("sip")
    port = free_port()
    for name, script in (("listen", LISTEN), ("speak", SPEAK), ("keys", KEYS)):
        (folder / f"{name}.yaml").write_text(script)
    async with serve(folder, CONFIG.format(port=port)) as live:
        yield live, port


@pytest.fixture(scope="module")
def recognised() -> Iterator[Any]:
    """A function from a WAV file to the words in it."""
    from moonshine_voice import ModelArch, Transcriber, get_model_path

    transcriber = Transcriber(str(get_model_path("tiny-en")), ModelArch.TINY)

    def words(path: Path) -> list[str]:
        with wave.open(str(path), "rb") as source:
            pcm = np.frombuffer(source.readframes(source.getnframes()), "<i2").reshape(-1, source.getnchannels())
            up = Resampler(source.getframerate(), 16000)
        sound = np.concatenate((up.process(to_float32(np.ascontiguousarray(pcm[:, 0]))), up.flush()))
        lines = transcriber.transcribe_without_streaming(sound.tolist(), 16000).lines
        return re.findall(r"[a-z]+|\d", " ".join(line.text for line in lines).lower())

    yield words
    transcriber.close()


def share_heard(heard: list[str]) -> float:
    """Of the sentence's words, in their order."""
    wanted = re.findall("[a-z]+", SENTENCE.lower())
    matches = SequenceMatcher(None, wanted, heard, autojunk=False).get_matching_blocks()
    return sum(block.size for block in matches) / len(wanted)
