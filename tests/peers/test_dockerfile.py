"""The image's Dockerfile, judged by hadolint."""

import subprocess
from pathlib import Path

from tests.peers.programs import HADOLINT, needs_hadolint


@needs_hadolint
def test_the_image_passes_the_linter() -> None:
    assert HADOLINT is not None
    done = subprocess.run(
        [HADOLINT, "--failure-threshold", "style", str(Path(__file__).parents[2] / "Dockerfile")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
