"""Run folders that somebody sent, with links in them: nothing is written where they lead."""

import shutil
from pathlib import Path

import pytest

from hwbmpq.cli.main import main
from hwbmpq.errors import HwbmpqError
from hwbmpq.training.run_directory import _OURS, RunDirectory
from hwbmpq.training.settings import resolve_settings

SMALL = ["--model", "hwbmpq:resnet8", "--target", "mpic", "--data", "fake", "--input", "3x8x8", "-q"]
SHORT = [*SMALL, "--train-images", "16", "--test-images", "8", "--batch-size", "8", "--epochs", "2"]
NEW = ["compress", *SHORT, "--run-dir", "run"]
RESUME = ["compress", "--resume", "run", "-q"]


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sent")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*NEW, "--budget", "memory=24KiB"]) == 0
    return folder / "run"


@pytest.fixture
def outside(sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of mine, beside the one with a copy of the run."""
    (tmp_path / "here").mkdir()
    shutil.copytree(sent, tmp_path / "here" / "run")
    (tmp_path / "mine" / "folder").mkdir(parents=True)
    (tmp_path / "mine" / "file").write_text("mine")
    (tmp_path / "mine" / "folder" / "config.yaml").write_text("mine")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "mine"


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


UNTOUCHED = {"file": "mine", "folder/config.yaml": "mine"}


@pytest.mark.parametrize("target", ["file", "not there"])
@pytest.mark.parametrize("ending", ["", ".unfinished"])
@pytest.mark.parametrize(
    ("words", "names"),
    [
        pytest.param(["export", "run"], ["model.onnx"], id="onnx"),
        pytest.param(["export", "run", "--format", "qonnx"], ["model.qonnx.onnx"], id="qonnx"),
        pytest.param(["export", "run", "--format", "packed"], ["model.safetensors"], id="packed"),
        pytest.param(["export", "run", "--best"], ["best.onnx"], id="best"),
        pytest.param(["report", "run", "--html", "run/report.html"], ["report.html"], id="page"),
    ],
)
def test_exports_and_pages_stay_in_the_folder(
    words: list[str], names: list[str], ending: str, target: str, outside: Path
) -> None:
    for name in names:
        Path("run", name).unlink(missing_ok=True)
        Path("run", name + ending).symlink_to(outside / target)
    main(words)
    assert content(outside) == UNTOUCHED
    assert not any(path.is_symlink() for path in Path("run").iterdir())
    assert all(Path("run", name).is_file() for name in names)


@pytest.mark.parametrize("target", ["file", "not there"])
@pytest.mark.parametrize("ending", ["", ".unfinished"])
@pytest.mark.parametrize("words", [RESUME, [*NEW, "--overwrite"]], ids=["resume", "overwrite"])
def test_nothing_that_a_run_writes_leaves_the_folder(
    words: list[str], ending: str, target: str, outside: Path
) -> None:
    """Of a finished run, of which a checkpoint of its last epoch but one is left."""
    Path("run/checkpoint.previous.pt").replace("run/checkpoint.pt")
    read = {"config.yaml", "facts.json", "checkpoint.pt"}
    for name in [*_OURS, ""] if ending else set(_OURS) - read:
        Path("run", name + ending).unlink(missing_ok=True)
        Path("run", name + ending).symlink_to(outside / target)
    assert main(words) == 0
    assert content(outside) == UNTOUCHED
    assert Path("run/checkpoint.pt").is_file()
    assert not Path("run/checkpoint.pt").is_symlink()


@pytest.mark.parametrize("name", ["baseline", "tensorboard"])
def test_folders_in_the_run_are_not_left_through_links(
    name: str, outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "tensorboard":
        pytest.importorskip("tensorboard")
    Path("run", name).symlink_to(outside / "folder")
    assert main([*RESUME, f"--{name}"]) == 2
    assert "nothing is written outside of the run's folder" in capsys.readouterr().err
    assert content(outside) == UNTOUCHED


@pytest.mark.parametrize("name", ["baseline", "tensorboard"])
def test_overwriting_a_run_removes_a_link_and_not_what_it_leads_to(name: str, outside: Path) -> None:
    Path("run", name).symlink_to(outside / "folder")
    assert main([*NEW, "--overwrite"]) == 0
    assert not Path("run", name).is_symlink()
    assert content(outside) == UNTOUCHED


def test_the_first_trial_of_the_folder_is_not_written_through_a_link(outside: Path) -> None:
    Path("new").mkdir()
    Path("new/.unfinished").symlink_to(outside / "not there")
    RunDirectory("new").create()
    assert content(outside) == UNTOUCHED


def test_exports_that_are_links_are_forgotten(outside: Path) -> None:
    for name, target in (("model.onnx", "file"), ("best.onnx", "not there")):
        Path("run", name).symlink_to(outside / target)
    RunDirectory("run").forget_exports()
    assert not any(path.is_symlink() for path in Path("run").iterdir())
    assert content(outside) == UNTOUCHED


def test_a_run_folder_that_the_user_reaches_through_a_link_of_their_own_is_fine(outside: Path) -> None:
    Path("elsewhere").symlink_to(outside / "folder")
    run = RunDirectory("elsewhere/run").create()
    run.save_settings(resolve_settings({"model": "hwbmpq:resnet8", "target": "mpic"}), {})
    assert (outside / "folder" / "run" / "config.yaml").is_file()


def test_a_subfolder_that_is_none_is_named(outside: Path) -> None:
    Path("run/baseline").symlink_to(outside)
    with pytest.raises(HwbmpqError, match=r"is a link to .*mine: nothing is written outside"):
        RunDirectory("run").subfolder("baseline")
