"""``hwbmpq targets new``."""

import builtins
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hwbmpq.hardware import QUESTIONS, check_profile

Captured = pytest.CaptureFixture[str]
Run = Callable[..., str]

pytestmark = pytest.mark.usefixtures("own_folder")


def test_new_writes_a_template_once(run: Run, tmp_path: Path) -> None:
    assert "wrote board.yaml" in run("new", "board")
    assert "board.yaml exists" in run("new", "board.yaml", code=2)
    run("new", "board", "--force")
    assert "still to be filled in" in run("check", "board.yaml", code=2)
    head, _, text = (tmp_path / "board.yaml").read_text().partition("schema:")
    for question in QUESTIONS:  # in the order of the file
        text = text.replace("FILL_IN", question.example, 1)
    (tmp_path / "board.yaml").write_text(f"schema:{text}")
    assert "ok board.yaml" in run("check", "board.yaml")
    assert "Replace every FILL_IN" in head


def test_new_from_a_profile_extends_it(run: Run) -> None:
    run("new", "board", "--from", "jetson_nano")
    assert "board.yaml:4:8: title: still to be filled in" in run("check", "board.yaml", code=2)


def test_new_from_a_profile_elsewhere_must_be_beside_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    base = tmp_path / "there" / "base.yaml"
    base.write_text("schema: hwbmpq/profile/v1\nname: base\ntitle: t\nextends: mpic\n")
    assert "the new profile could not find it" in run("new", "board", "--from", str(base), code=2)
    run("new", "board", "--from", str(base), "-o", "there")
    assert (tmp_path / "there" / "board.yaml").exists()


def answered(monkeypatch: pytest.MonkeyPatch, answers: Iterator[str]) -> None:
    def answer(*_: object) -> str:
        try:
            return next(answers)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(builtins, "input", answer)


def test_new_interactive_asks_until_the_answer_is_good(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [question.example for question in QUESTIONS]
    given[1:1] = ["robot"]  # no class
    given[6:6] = ["480"]  # no unit
    answered(monkeypatch, iter(given))
    output = run("new", "board", "--interactive")
    assert "Look it over" in output
    assert "FILL_IN" not in (tmp_path / "board.yaml").read_text()
    profile = check_profile(tmp_path / "board.yaml")
    assert (profile.title, profile.device_class) == (QUESTIONS[0].example, "mcu")


def test_new_interactive_without_answers_writes_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered(monkeypatch, iter(["A board"]))
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert "no more answers" in run("new", "board", "--interactive", code=2)
    assert not (tmp_path / "board.yaml").exists()
