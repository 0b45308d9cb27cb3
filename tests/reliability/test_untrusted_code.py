"""Run folders and settings that somebody sent: the code that they name runs only with consent."""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hwbmpq.cli.main import main
from hwbmpq.training import RunDirectory, UntrustedCodeError
from hwbmpq.training.checkpoint import CheckpointError
from hwbmpq.training.trust import check_trust, code_in

NETWORK = """
from pathlib import Path
from torch import nn

Path(__file__).with_name("it ran").touch()


def make_net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
"""
COMPRESS = (
    "compress --model file:code/net.py:make_net --target mpic --data fake --input 3x8x8 --train-images 16 "
    "--test-images 8 --batch-size 8 --epochs 2 --run-dir run"
).split()
Typed = Callable[..., tuple[int, str]]
OPENING = [["evaluate", "run"], ["export", "run"], ["benchmark", "run", "--rounds", "1"]]
OPENING += [["evaluate", "run", "--runtime", "packed"], ["compress", "--resume", "run"]]
OPENING += [["compress", "--config", "run/config.yaml", "--run-dir", "again"]]


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and the code that its settings name."""
    folder = tmp_path_factory.mktemp("sent")
    (folder / "code").mkdir()
    (folder / "code" / "net.py").write_text(NETWORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(COMPRESS) == 0  # whoever types the specification is not asked
    assert (folder / "code" / "it ran").exists()
    return folder


@pytest.fixture
def typed(
    sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """Type a command beside a copy of the run: exit code and stderr. The code has not run yet."""
    shutil.copytree(sent / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    (sent / "code" / "it ran").unlink(missing_ok=True)

    def type_words(*words: str) -> tuple[int, str]:
        code = main(list(words))
        return code, capsys.readouterr().err

    return type_words


def set_in(config: Path, **values: Any) -> None:
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), **values}))


def ran(sent: Path) -> bool:
    return (sent / "code" / "it ran").exists()


@pytest.mark.parametrize("words", OPENING, ids=" ".join)
def test_code_that_a_run_names_does_not_run_unasked(words: list[str], sent: Path, typed: Typed) -> None:
    code, err = typed(*words)
    assert not ran(sent)
    assert code == 2
    assert f"model: make_net in {sent / 'code' / 'net.py'}" in err
    assert "--trust" in err
    assert f"--model file:{sent}/code/net.py:make_net" in err


@pytest.mark.parametrize("words", OPENING, ids=" ".join)
def test_trust_lets_it_run(words: list[str], sent: Path, typed: Typed) -> None:
    code, err = typed(*words, "--trust")
    assert code == 0, err
    assert ran(sent)


@pytest.mark.parametrize("words", OPENING, ids=" ".join)
def test_so_does_the_path_given_again(words: list[str], sent: Path, typed: Typed) -> None:
    code, err = typed(*words, "--model", f"file:{sent}/code/net.py:make_net")
    assert code == 0, err
    assert ran(sent)


def test_a_copy_of_the_code_elsewhere_can_be_named(sent: Path, typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(NETWORK)
    code, err = typed("evaluate", "run", "--model", "file:mine.py:make_net")
    assert code == 0, err
    assert (tmp_path / "it ran").exists()
    assert not ran(sent)


def test_a_resumed_run_takes_no_other_code(sent: Path, typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(NETWORK)
    code, err = typed("compress", "--resume", "run", "--model", "file:mine.py:make_net")
    assert code == 2
    assert "a resumed run keeps its settings: leave out --model" in err
    assert not (tmp_path / "it ran").exists()


def test_a_relative_path_is_looked_up_in_the_current_folder_and_the_message_says_so(
    typed: Typed, tmp_path: Path
) -> None:
    set_in(tmp_path / "run" / "config.yaml", model="file:net.py:make_net")
    (tmp_path / "run" / "net.py").write_text(NETWORK)
    code, err = typed("evaluate", "run")
    assert code == 2
    assert f"make_net in {tmp_path / 'net.py'}" in err
    assert "looked up in the current folder" in err
    assert not (tmp_path / "run" / "it ran").exists()


def test_reports_need_no_code(sent: Path, typed: Typed) -> None:
    assert typed("report", "run")[0] == 0
    assert typed("report", "run", "--html", "page.html")[0] == 0
    assert not ran(sent)


@pytest.mark.parametrize("setting", ["data", "task"])
@pytest.mark.parametrize("words", [*OPENING, ["report", "run"]], ids=" ".join)
def test_nor_does_the_code_of_another_setting(
    words: list[str], setting: str, sent: Path, typed: Typed, tmp_path: Path
) -> None:
    set_in(
        tmp_path / "run" / "config.yaml", model="hwbmpq:resnet8", **{setting: f"file:{sent}/code/net.py:make"}
    )
    code, err = typed(*words)
    assert not ran(sent)
    if words[0] != "report":
        assert code == 2
        assert f"{setting}: make in {sent / 'code' / 'net.py'}" in err


def test_a_baseline_beside_the_run_runs_nothing_else(sent: Path, typed: Typed, tmp_path: Path) -> None:
    """Its own settings are not read: they may name other code."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "net.py").write_text(NETWORK)
    shutil.copytree(tmp_path / "run", tmp_path / "run" / "baseline")
    set_in(tmp_path / "run" / "baseline" / "config.yaml", model=f"file:{tmp_path}/other/net.py:make_net")
    typed("compress", "--resume", "run", "--baseline", "--trust")
    assert ran(sent)
    assert not (tmp_path / "other" / "it ran").exists()


def test_hints_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    """What the sender wrote is one word of the command, whatever is in it."""
    evil = "$(touch it-ran);`touch it-ran`' x"
    with pytest.raises(UntrustedCodeError) as error:
        check_trust({"model": f"file:/{evil}.py:make;id", "a; id": "file:/x.py:y"}, tmp_path)
    words = shlex.split(error.value.hint.partition("name it yourself: ")[2])
    assert words == ["--model", f"file:/{evil}.py:make;id", "--a; id", "file:/x.py:y"]
    with pytest.raises(CheckpointError, match="no checkpoint yet") as problem:
        RunDirectory(tmp_path / evil).load_checkpoint()
    assert shlex.split(problem.value.hint)[3] == str(tmp_path / evil)


def test_in_python_as_well(sent: Path, typed: Typed) -> None:
    run = RunDirectory("run").open()
    with pytest.raises(UntrustedCodeError, match="names Python code, which was not run") as error:
        run.load_settings()
    assert "trust=True" in error.value.hint
    assert run.load_settings(trust=True).model == f"file:{sent}/code/net.py:make_net"
    assert run.load_settings(given={"model": "hwbmpq:resnet8"}).model == "hwbmpq:resnet8"


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "file:x.py:make"},
        {"data": "file:x.py:loaders"},
        {"data": "file:x.py:loaders.pt2"},
        {"task": "file:x.py:Task"},
        {"teacher": {"model": "file:x.py:make"}},
        {"hooks": ["none", "file:x.py:hook"]},
        {"anything": " FILE:x.py:hook"},
        {"file:x.py:key": 1},
    ],
)
def test_every_setting_that_leads_to_code_counts(settings: dict[str, Any]) -> None:
    found = code_in(settings)
    assert [code.setting for code in found] == list(settings)
    assert found[0].path == Path("x.py").absolute()


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "file:x.pt2"},
        {"model": "timm:resnet18", "data": "npz:file:x.npz", "epochs": 3, "budgets": {"memory": "1KiB"}},
    ],
)
def test_others_do_not(settings: dict[str, Any]) -> None:
    assert not code_in(settings)
