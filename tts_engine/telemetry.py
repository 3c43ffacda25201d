"""Settings that stop libraries from reporting to their makers.

Importing ``tts_engine`` sets them, before any of these libraries is loaded; child processes inherit them. A variable
that the environment has set stays. The images, docker-compose.yaml and the manifests of ``configs/k8s`` set the same
ones, and docs/security.md says what each library would send.
"""

from __future__ import annotations

import os

OFF = {
    "DO_NOT_TRACK": "1",  # a convention of vLLM, huggingface_hub and others
    "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime 1.29 and newer, read when it is loaded
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",  # models are read from folders, so a look-up at the hub is never wanted
    # vLLM asks on Blackwell GPUs whether the kernels there can be loaded. Nothing listens on this port, so they cannot.
    "FLASHINFER_CUBINS_REPOSITORY": "http://127.0.0.1:9/",
}
"""Environment variable -> value that switches the reports off."""


def switch_off() -> None:
    """Set the variables of ``OFF`` that the environment does not set."""
    for variable, value in OFF.items():
        os.environ.setdefault(variable, value)
