"""The kernels under Triton's own compiler, for the GPU that they are made for; none is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_kernels_compile_for_the_gpu_that_they_are_made_for(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    module = "tests.tts_engine.cosyvoice.kernels.compile_kernels"
    subprocess.run([sys.executable, "-m", module], check=True, env=environment, cwd=Path(__file__).parents[3])
