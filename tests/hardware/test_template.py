"""New profiles, by hand and by answers."""

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hwbmpq.hardware import (
    QUESTIONS,
    ProfileError,
    check_profile,
    list_profiles,
    load_profile,
    new_profile,
    profile_based_on,
    profile_json_schema,
)
from hwbmpq.hardware.yaml_reader import parse_document

EXAMPLES = {question.key: question.example for question in QUESTIONS}


def test_the_template_is_accepted_once_its_blanks_are_filled(tmp_path: Path) -> None:
    path = tmp_path / "board.yaml"
    path.write_text(new_profile("board", EXAMPLES))
    profile = check_profile(path)
    assert profile.title == EXAMPLES["title"]
    assert [str(pair) for pair in profile.pairs] == ["int8×int8", "int4×int8"]
    assert profile.clock.core_hz is not None
    assert profile.clock.core_hz.value == 480e6


def test_every_blank_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "board.yaml"
    text = new_profile("board")
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        check_profile(path)
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "FILL_IN" in line and number > 1]
    assert [problem.place.line for problem in caught.value.problems] == lines
    assert all(problem.message == "still to be filled in" for problem in caught.value.problems)
    assert len(lines) == len(QUESTIONS)


def test_commented_lines_of_the_template_are_good_as_well(tmp_path: Path) -> None:
    """A person uncomments them: power, budgets, pairs, efficiency, energy."""
    text = new_profile("board", EXAMPLES)
    for start in ("power:", "  active:", "budgets:", "  flash:", "energy:"):
        text = re.sub(rf"^( *)# ({re.escape(start.strip())}.*)$", r"\1\2", text, flags=re.MULTILINE)
        text = re.sub(rf"^#({re.escape(start)}.*)$", r" \1", text, flags=re.MULTILINE)
    text = re.sub(r"^#   (active|flash):", r"  \1:", text, flags=re.MULTILINE)
    path = tmp_path / "board.yaml"
    path.write_text(text)
    profile = check_profile(path)
    assert profile.power.active_w is not None
    assert profile.budgets == {"flash": "1 MiB"}
    assert profile.cost_models["energy"].model == "power_time"


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.key)
def test_answers_are_checked(question: object) -> None:
    question.check(question.example)  # type: ignore[attr-defined]
    for wrong in ("", '"', "-1"):
        if question.key == "title" and wrong == "-1":  # type: ignore[attr-defined]
            continue
        if question.key == "source" and wrong == "-1":  # type: ignore[attr-defined]
            continue
        with pytest.raises(ValueError, match=r"\w"):
            question.check(wrong)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [listing.name for listing in list_profiles()])
def test_a_profile_based_on_another_is_accepted_with_its_title(name: str, tmp_path: Path) -> None:
    path = tmp_path / "board.yaml"
    text = profile_based_on("board", load_profile(name)).replace("FILL_IN", "My board")
    path.write_text(text)
    profile = check_profile(path)
    assert (profile.title, profile.extends) == ("My board", name)
    uncommented = re.sub(r"^# ( *\w+:( \{.*)?)$", r"\1", text.partition("\n")[2], flags=re.MULTILINE)
    path.write_text(uncommented)
    assert check_profile(path).pairs == load_profile(name).pairs


def test_the_json_schema_finds_the_misspelt_key_and_the_wrong_kind() -> None:
    validator = jsonschema.Draft202012Validator(profile_json_schema())
    content = parse_document(new_profile("board", EXAMPLES), "board.yaml").plain()
    assert not list(validator.iter_errors(content))
    content["memory"][0]["bandwith"] = "3 GB/s"
    content["clock"]["core"]["kind"] = "datashet"
    messages = " ".join(error.message for error in validator.iter_errors(content))
    assert "'bandwith' was unexpected" in messages
    assert any("core" in error.path for error in validator.iter_errors(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("title"), "'title' is a required property"),
        (lambda content: content.pop("class"), "'class' is a required property"),
        (
            lambda content: content["clock"].update(core=480),
            "480 is not valid under any of the given schemas",
        ),
        (
            lambda content: content["clock"]["core"].update(value=[]),
            "is not valid under any of the given schemas",
        ),
        (lambda content: content.update(colour="red"), "'colour' was unexpected"),
    ],
)
def test_the_json_schema_refuses(change: Any, message: str) -> None:
    validator = jsonschema.Draft202012Validator(profile_json_schema())
    content = parse_document(new_profile("board", EXAMPLES), "board.yaml").plain()
    change(content)
    assert message in " ".join(error.message for error in validator.iter_errors(content))
