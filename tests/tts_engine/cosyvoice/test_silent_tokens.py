"""The silent-token filter against upstream's."""

import pytest

from tests.tts_engine.cosyvoice.models.goldens import VERSIONS, read_json
from tts_engine.cosyvoice.silent_tokens import SILENT_IDS, SilenceFilter


@pytest.mark.parametrize("version", VERSIONS)
def test_filter_is_upstreams(version: int) -> None:
    for case in read_json(version, "silent_filter.json"):
        silence = SilenceFilter(SILENT_IDS if version == 3 else frozenset())
        assert [i for i in case["llm_tokens"] if silence.keep(i)] == case["flow_tokens"]
