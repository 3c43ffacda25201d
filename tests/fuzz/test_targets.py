"""The targets over their kept corpora and over seeded mutations of them; and that every parser has a target."""

import logging
import re
from pathlib import Path

import pytest

from tests.fuzz.corpus import FOLDER, kept
from tests.fuzz.mutator import cases
from tests.fuzz.target import checked
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]

PARSERS = (
    "sip_bridge/message/*.py",
    "sip_bridge/dialog/dialog.py",
    "sip_bridge/targets.py",
    "sip_bridge/dialog/transfer.py",
    "gateway/carriers/*/dialect.py",
    "gateway/carriers/*/call_control.py",
    "gateway/carriers/call_status.py",
    "gateway/carriers/placing.py",
    "gateway/carriers/*/proof.py",
    "gateway/carriers/asterisk/audiosocket.py",
    "gateway/carriers/freeswitch/esl_messages.py",
    "gateway/clips/clips.py",
    "gateway/credentials/json_web_tokens.py",
    "gateway/dialogue/wire.py",
    "gateway/http/**/*.py",
    "gateway/listener/connection.py",
    "gateway/listener/forwarded.py",
    "gateway/media/dtmf.py",
    "gateway/media/jitter_buffer.py",
    "gateway/media/rt*.py",
    "gateway/recognition/listen.py",
    "gateway/webrtc/ice.py",
    "gateway/webrtc/sdp.py",
    "talkspurt/commands/import_twiml.py",
    "talkspurt/config/yaml_file.py",
    "tts_engine/cosyvoice/frontend/features.py",
    "tts_engine/cosyvoice/frontend/normalise.py",
    "tts_engine/service/link_*.py",
    "tts_engine/service/wire.py",
    "tts_engine/text/*.py",
)
"""Files that read what strangers, callers, carriers, managers or operators wrote."""

READS = re.compile(
    r"orjson\.loads|json\.loads|unpack_from|\.unpack\(|iter_unpack|int\.from_bytes|model_validate_json|av\.open"
    r"|pickle\.loads|\.multipart\(\)|request\.post\(\)|yaml\.compose"
)
"""The functions that a parser of bytes calls."""

TRUSTED = {
    "gateway/cluster/passing.py": "one field of a body; the process that gets the request reads the whole body",
    "gateway/cluster/redis_state.py": "records that our gateways wrote into the operator's Redis",
    "gateway/cluster/siblings.py": "messages between this server's workers on a socket that only they reach",
    "gateway/cluster/socket_state.py": "what workers of this server say on a socket that only they reach",
    "gateway/cluster/trial_sharing.py": "what workers of this server say on a socket that only they reach",
    "gateway/credentials/api_keys.py": "the file of keys that `talkspurt keys` wrote",
    "gateway/dialogue/line.py": "the kind of a message that this process wrote",
    "gateway/dialogue/script.py": "the operator's scripts",
    "gateway/http/call_api/room_recordings.py": "files that this server's recorder wrote",
    "gateway/model_trial.py": "a digest of its own making",
    "gateway/uplink/sealing.py": "recordings that this server sealed",
    "sip_bridge/io/shared_address.py": "what processes of this server say on a socket that only they have",
    "gateway/recognition/server.py": "the embedded recogniser's socket, whose only client is this gateway",
    "gateway/recognition/whisper.py": "files of a model that the operator installed",
    "tts_engine/cosyvoice/checkpoint.py": "files of a model that the operator installed",
    "tts_engine/cosyvoice/frontend/normaliser_process.py": "settings that its parent wrote",
    "tts_engine/cosyvoice/frontend/tokenizer.py": "files of a model that the operator installed",
    "tts_engine/cosyvoice/vllm_plugin/joined_table.py": "tensors of this process",
    "tts_engine/cosyvoice/voices.py": "voices that this process wrote",
    "tts_engine/cosyvoice/weights.py": "files of a model that the operator installed",
    "tts_engine/service/framing/message_connection.py": "what our processes say on a socket that only they reach",
    "tts_engine/service/models.py": "settings of a model, from who may load models",
}
"""Files that decode, but nothing that came over the network, with the reason."""


def _files(globs: tuple[str, ...]) -> set[str]:
    return {str(path.relative_to(ROOT)) for glob in globs for path in ROOT.glob(glob) if path.name != "__init__.py"}


COVERED = _files(tuple(glob for target in TARGETS.values() for glob in target.covers))


@pytest.mark.parametrize("glob", PARSERS)
def test_every_parser_has_a_target(glob: str) -> None:
    found = _files((glob,))
    assert found, f"{glob} names no file"
    assert sorted(found - COVERED) == [], "these want a target in tests/fuzz/targets"


def test_code_that_decodes_bytes_has_a_target_or_a_reason() -> None:
    decoding = {
        name
        for name in _files(("gateway/**/*.py", "sip_bridge/**/*.py", "tts_engine/**/*.py", "talkspurt/config/*.py"))
        if "/proto/" not in name and READS.search((ROOT / name).read_text())
    }
    unknown = sorted(decoding - COVERED - TRUSTED.keys())
    assert unknown == [], "these want a target in tests/fuzz/targets, or a reason in TRUSTED"
    assert sorted(TRUSTED.keys() - decoding) == [], "these decode nothing any more"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # aiohttp warns of a header that is none
@pytest.mark.parametrize("name", TARGETS)
def test_a_target_finds_nothing_in_its_corpus_and_its_mutations(name: str) -> None:
    target = TARGETS[name]
    corpus = kept(target)
    logging.disable(logging.CRITICAL)  # a line for each bad message would be all that a failure shows
    try:
        for case in (*corpus, *cases(target, corpus, target.quick)):
            try:
                target.run(case)
            except BaseException as exc:
                pytest.fail(f"{case!r}: {exc!r}", pytrace=True)
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", TARGETS)
def test_text_that_leaves_a_parser_is_asserted_to_be_plain(name: str) -> None:
    target = TARGETS[name]
    before = checked["values"]
    for seed in target.seeds:
        target.run(seed)
    assert (checked["values"] > before) != bool(target.without_text), "either an assertion or a reason"


def test_the_kept_corpora_stay_small_and_belong_to_targets() -> None:
    files = sorted(FOLDER.iterdir())
    assert {path.stem for path in files} <= TARGETS.keys()
    assert sum(path.stat().st_size for path in files) < 300_000
