"""Kits for other devices."""

import json
import signal
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from hwbmpq.errors import HwbmpqError
from hwbmpq.measure import DEFAULT_WIDTHS, LayerKernel, kit_runner, read_results, write_kit

HIDING = """
import runpy, sys
allowed = set(sys.stdlib_module_names) | {"numpy", "onnxruntime", "flatbuffers", "google", "packaging", "run"}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
sys.argv = ["run.py", *sys.argv[1:]]
runpy.run_path("run.py", run_name="__main__")
"""


@pytest.fixture
def kit(kernels: tuple[LayerKernel, ...], tmp_path: Path) -> Path:
    return write_kit(tmp_path / "my_kit.zip", kernels, widths=DEFAULT_WIDTHS, models=["hwbmpq:tiny"])


def unpacked(kit: Path, place: Path) -> Path:
    with zipfile.ZipFile(kit) as archive:
        archive.extractall(place)
    return place / "my_kit"


def test_a_kit_is_one_folder_of_plain_names(kit: Path) -> None:
    with zipfile.ZipFile(kit) as archive:
        names = archive.namelist()
    assert {Path(name).parts[0] for name in names} == {"my_kit"}
    assert all(len(Path(name).parts) == 2 and ".." not in name and not name.startswith("/") for name in names)
    assert {"my_kit/run.py", "my_kit/manifest.json", "my_kit/reference.onnx", "my_kit/README.txt"} <= set(
        names
    )


def test_the_runner_in_it_is_ours_to_the_letter(kit: Path, tmp_path: Path) -> None:
    assert (unpacked(kit, tmp_path) / "run.py").read_text() == Path(kit_runner.__file__).read_text()


def test_a_kit_runs_where_only_numpy_and_onnxruntime_are(kit: Path, tmp_path: Path) -> None:
    folder = unpacked(kit, tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", "-c", HIDING, "--rounds", "3"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "(100%)" in done.stderr
    assert done.stderr.count("visits") == 10
    assert "about 5 s; leave the machine alone" in done.stderr
    assert "wrote results.json (all kernels; 0 could not run here)" in done.stderr
    assert read_results(folder / "results.json").is_complete


def test_what_hides_the_rest_does_hide_it(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("import torch")
    done = subprocess.run([sys.executable, "-I", "-c", HIDING], cwd=tmp_path, capture_output=True, text=True)
    assert "ModuleNotFoundError: torch" in done.stderr


@pytest.mark.slow
def test_a_kit_runs_in_a_new_environment(kit: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    installed = subprocess.run(
        [python, "-m", "pip", "install", "-q", "onnxruntime", "numpy"], capture_output=True
    )
    if installed.returncode:
        pytest.skip("packages cannot be fetched here")
    folder = unpacked(kit, tmp_path)
    subprocess.run([python, "run.py", "--rounds", "3"], cwd=folder, check=True, capture_output=True)
    assert read_results(folder / "results.json").is_complete


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rounds", "1"), "at least 3 rounds"),
        (("--rounds", "10001"), "give at most 10000"),
        (("--threads", "9999"), "9999 threads: this machine has "),
    ],
)
def test_settings_that_cannot_be_are_refused_there(
    kit: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    folder = unpacked(kit, tmp_path)
    done = subprocess.run([sys.executable, "run.py", *options], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 2
    assert message in done.stderr


def test_ctrl_c_leaves_results_of_complete_rounds(kit: Path, tmp_path: Path) -> None:
    folder = unpacked(kit, tmp_path)
    with subprocess.Popen(
        [sys.executable, "run.py", "--rounds", "1500"], cwd=folder, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        while "(10%)" not in running.stderr.readline():
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        said = running.stderr.read()
    assert running.returncode == 130
    assert "interrupted: only a part, 74 of 74 kernels" in said
    results = read_results(folder / "results.json")
    assert not results.is_complete
    assert 30 <= len(results.rounds[0]) < 1500


def test_the_kit_itself_is_no_results(kit: Path) -> None:
    with pytest.raises(
        HwbmpqError, match=r"this is the kit itself: run it on the device and give its results\.json"
    ):
        read_results(kit)


def test_another_zip_file_is_to_be_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "results.zip", "w") as archive:
        archive.writestr("results.json", "{}")
    with pytest.raises(HwbmpqError, match="is a zip file"):
        read_results(tmp_path / "results.zip")


@pytest.mark.parametrize(
    ("name", "message"), [("kit.tar", "a kit is a zip file"), ("nowhere/kit.zip", "there is no folder")]
)
def test_places_where_no_kit_can_be_are_refused(
    name: str, message: str, kernels: tuple[LayerKernel, ...], tmp_path: Path
) -> None:
    with pytest.raises(HwbmpqError, match=message):
        write_kit(tmp_path / name, kernels, widths=DEFAULT_WIDTHS, models=[])
    assert list(tmp_path.iterdir()) == []


def test_a_kit_is_not_overwritten_unasked(kit: Path, kernels: tuple[LayerKernel, ...]) -> None:
    with pytest.raises(HwbmpqError, match="exists"):
        write_kit(kit, kernels, widths=DEFAULT_WIDTHS, models=[])


def test_weights_pack_small(kit: Path) -> None:
    with zipfile.ZipFile(kit) as archive:
        manifest = json.loads(archive.read("my_kit/manifest.json"))
        large = max(manifest["kernels"], key=lambda entry: entry["bytes"])
        info = archive.getinfo(f"my_kit/{large['id']}.onnx")
    assert info.compress_size < info.file_size
