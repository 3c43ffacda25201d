from pathlib import Path

import pytest

from talkspurt.simulator.call_script import (
    CallScriptError,
    CancelStep,
    Expect,
    HangUpStep,
    Press,
    SayStep,
    TextStep,
    Wait,
    read_script,
)


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "call.yaml"
    path.write_text(text)
    return path


def test_all_steps_are_read(tmp_path: Path) -> None:
    text = """
    - expect: {speech_ms: 3000}
    - wait: 800
    - say: q.wav
    - dtmf: "12#"
    - text: Hello.
    - cancel: true
    - expect: {hang_up_ms: 5000}
    - hang_up: true
    """
    assert read_script(script(tmp_path, text)) == [
        Expect("speech", 3000),
        Wait(800),
        SayStep(tmp_path / "q.wav"),
        Press("12#"),
        TextStep("Hello."),
        CancelStep(),
        Expect("hang_up", 5000),
        HangUpStep(),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "list of steps"),
        ("a: [", "not YAML"),
        ("- wait: soon", "step 1"),
        ("- wait: 5\n- shout: 5", "step 2"),
        ("- wait: -1", "between 0 and an hour"),
        ("- {wait: 5, say: x}", "one key"),
        ("- dtmf: 1x", "0-9"),
        ("- expect: {speech: 5}", "speech_ms"),
        ("- expect: {speech_ms: x}", "milliseconds"),
        ("- expect: {speech_ms: 1, clear_ms: 2}", "unknown step"),
    ],
)
def test_a_wrong_script_is_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CallScriptError, match=message):
        read_script(script(tmp_path, text))


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(CallScriptError, match="none.yaml"):
        read_script(tmp_path / "none.yaml")
