"""One class name means one thing, in all packages together."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("codecs/voicecodecs", "gateway", "sip_bridge", "tts_engine", "talkspurt")
SHARED = {
    "Attention": "layers of CosyVoice's networks: one file a network, with the names of its paper",
    "FeedForward": "the same",
    "F0Predictor": "the same",
    "ResBlock": "the same",
    "Decoder": "one module a codec: opus.Decoder, g722.Decoder, and the Protocol of both",
    "Encoder": "the same",
    "Engine": "a deployment on Ray has the name of its class, which configs/cluster.yaml gives",
    "Directory": "the same",
    "MarkReached": "a carrier tells the gateway that a mark was played, and the gateway tells the manager",
}
"""Names that stand twice, and why."""


def public_classes() -> Iterator[tuple[str, str]]:
    files = (path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    for path in (path for path in files if "proto" not in path.parts):  # those are generated
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, str(path.relative_to(ROOT))


def test_no_two_public_classes_have_one_name() -> None:
    files = defaultdict(list)
    for name, file in public_classes():
        files[name].append(file)
    twice = {name: found for name, found in files.items() if len(found) > 1}
    assert {name: found for name, found in twice.items() if name not in SHARED} == {}
    assert SHARED.keys() <= twice.keys(), "names that stand once need no reason"
