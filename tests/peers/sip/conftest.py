"""One server for the calls of a module."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.peers.live_server import Live, serve
from tests.peers.ports import free_port

SENTENCE = "The quick brown fox jumps over the lazy dog, and then it sleeps under a tree until the morning."

CONFIG = """
sip:
  port: {port}
  rtp_ports: 20000-20999
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
    - gather: {timeout_s: 60, max_digits: 3, variable: typed, otherwise: bye}
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
