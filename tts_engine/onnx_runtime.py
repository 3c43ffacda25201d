"""onnxruntime, with its reports to its maker off. Import it from here only.

``tts_engine.telemetry`` has set the environment by now, which suffices unless another part of the program loaded the
library before.
"""

from __future__ import annotations

import os

import onnxruntime as onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail as Fail

if os.environ.get("ORT_DISABLE_TELEMETRY") != "0":
    onnxruntime.disable_telemetry_events()
