import re
from pathlib import Path

import pytest

from talkspurt.simulator.call_script import (
    STEPS,
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
    (tmp_path / "q.wav").touch()
    text = """
    - expect: {speech_s: 3}
    - pause: 0.8
    - say: q.wav
    - dtmf: "12#"
    - text: Hello.
    - cancel: true
    - expect: {hang_up_s: 5}
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
        ("- pause: soon", "step 1"),
        ("- pause: 5\n- shout: 5", "step 2"),
        ("- pause: -1", "between 0 and an hour"),
        ("- {pause: 5, say: x}", "one key"),
        ("- say: none.wav", "step 1: say: no such file: .*none.wav"),
        ("- wait: 800", "write 'pause: 0.8', in seconds"),
        ("- expect: {quiet_ms: 800}", "write quiet_s, in seconds"),
        ("- dtmf: 1x", "0-9"),
        ("- expect: {speech: 5}", "speech_s"),
        ("- expect: {speech_s: x}", "seconds"),
        ("- expect: {speech_s: 1, clear_s: 2}", "unknown step"),
    ],
)
def test_a_wrong_script_is_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CallScriptError, match=message):
        read_script(script(tmp_path, text))


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(CallScriptError, match="none.yaml"):
        read_script(tmp_path / "none.yaml")


def test_the_page_shows_every_step(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/simulated-calls.md").read_text()
    (shown,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    assert shown == STEPS
    (tmp_path / "question.wav").touch()
    steps = read_script(script(tmp_path, shown))
    assert {type(step) for step in steps} == {Wait, SayStep, Press, TextStep, CancelStep, Expect, HangUpStep}


def test_all_wrong_steps_are_named_with_the_nearest_one(tmp_path: Path) -> None:
    file = tmp_path / "script.yaml"
    file.write_text("- hangup: true\n- pause: 1\n- txet: Hello.\n")
    with pytest.raises(CallScriptError) as caught:
        read_script(file)
    first, second = str(caught.value).splitlines()
    assert "step 1:" in first and first.endswith("did you mean 'hang_up'?")
    assert "step 3:" in second and second.endswith("did you mean 'text'?")
