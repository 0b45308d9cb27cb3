"""The wheel and the editable install, from another folder."""

import shutil
import subprocess
import sys
import zipfile
from importlib import resources
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLES = sorted(path.name for path in (ROOT / "hardware_profiles" / "tables").glob("*.json"))
PROFILES = sorted(path.name for path in (ROOT / "hardware_profiles").glob("*.yaml"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git would hand out: a leftover build folder must not leak in."""
    source = tmp_path_factory.mktemp("source")
    for name in ("hwbmpq", "cli", "models", "hardware_profiles"):
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    target = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(target),
        str(source),
    ]
    subprocess.run([*command, "--disable-pip-version-check"], check=True, cwd=target)
    (built,) = target.glob("*.whl")
    return built


def test_the_wheel_holds_one_name_and_all_profiles(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"hwbmpq"}
    assert PROFILES
    assert {f"hwbmpq/hardware_profiles/{name}" for name in PROFILES} <= set(names)
    assert TABLES
    assert {f"hwbmpq/hardware_profiles/tables/{name}" for name in TABLES} <= set(names)
    assert {"hwbmpq/py.typed", "hwbmpq/cli/main.py", "hwbmpq/models/zoo.py"} <= set(names)


def test_the_wheel_runs_the_command_line_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "from importlib import resources\n"
        "import hwbmpq.cli.main as cli\n"
        f"assert cli.__file__.startswith({str(tmp_path)!r}), cli.__file__\n"
        "print(sorted(p.name for p in resources.files('hwbmpq.hardware_profiles').iterdir() if p.suffix == '.yaml'))\n"
        "assert cli.main(['targets', 'show', 'nvidia_t4', '--model', 'hwbmpq:resnet8', '--cost', 'latency']) == 0\n"
        "raise SystemExit(cli.main(['inspect', '--model', 'hwbmpq:resnet8']))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0] == str(PROFILES)
    assert "8 layers" in result.stdout


def test_the_editable_install_runs_from_another_folder(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("hwbmpq")
    if not script.exists():
        pytest.skip("hwbmpq is not installed in this environment")
    for command in ([str(script)], [sys.executable, "-m", "hwbmpq"]):
        result = subprocess.run([*command, "--version"], capture_output=True, text=True, cwd=tmp_path)
        assert (result.returncode, result.stdout.split()[0]) == (0, "hwbmpq")


def test_profiles_are_found_as_package_resources() -> None:
    folder = resources.files("hwbmpq.hardware_profiles")
    assert sorted(item.name for item in folder.iterdir() if item.name.endswith(".yaml")) == PROFILES
