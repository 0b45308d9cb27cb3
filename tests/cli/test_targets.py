"""``hwbmpq targets``."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hwbmpq.cli.main import main
from hwbmpq.hardware import load_profile
from hwbmpq.hardware.load import list_profiles

Captured = pytest.CaptureFixture[str]
Run = Callable[..., str]

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.parametrize("columns", ["80", "140", "60", "50"])
def test_list_names_every_profile_whatever_the_width(
    columns: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    output = run("list")
    assert all(len(line) <= int(columns) for line in output.splitlines())
    for listing in list_profiles():
        assert listing.name in output
    if columns != "50":
        assert "2 4 8 fp16 fp32" in output
        assert "0/86/14" in output
        assert "25/25/50" in output
    if columns in ("80", "140"):
        assert "4 GiB" in output
        assert "lookup_table" in output


def test_list_marks_the_users_own_and_the_broken(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.yaml").write_text(
        "schema: hwbmpq/profile/v1\nname: own\ntitle: t\nextends: mpic\n"
    )
    (tmp_path / "mine" / "sick.yaml").write_text("schema: 1\n")
    output = run("list")
    assert "own *" in output
    assert "broken" in output
    assert "targets check" in output
    content = {entry["name"]: entry for entry in json.loads(run("list", "--json"))}
    assert "is missing" in " ".join(content["sick"]["problems"])
    assert content["own"]["pairs"][0] == ["int8", "int8"]


def test_list_takes_less_than_a_second_without_torch() -> None:
    code = (
        "import sys, hwbmpq.cli.main as cli\n"
        "assert cli.main(['targets', 'list']) == 0\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'torch', 'timm', 'networkx', 'numpy'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"

    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "hwbmpq", "targets", "list"], capture_output=True, check=True)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 1.0


def test_show_gives_every_figure_its_source(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    output = run("show", "jetson_nano@5w")
    assert "jetson_nano@5w" in output
    for text in (
        "614.4 MHz",
        "reported",
        "nvpmodel",
        "25.6 GB/s",
        "you write it",
        "first and last layer: W16A16",
    ):
        assert text in output
    assert "Fewer bits do not make arithmetic faster" in output
    assert "https://github.com/ceccocats/tkDNN/issues/26" in output


@pytest.mark.parametrize("name", [listing.name for listing in list_profiles()])
def test_show_works_for_every_profile_with_a_network(name: str, run: Run) -> None:
    output = run("show", name, "--model", "hwbmpq:resnet8")
    profile = load_profile(name)
    assert f"hwbmpq:resnet8 at 3x32x32 on {name}" in output
    assert "memory in KiB, by weight width" in output
    assert "layer1.0.conv1" in output
    for quantity in profile.cost_models:
        assert f"{quantity} in" in output or f"no {quantity}:" in output
    assert all(len(line) <= 80 for line in output.splitlines())


def test_show_json_has_the_whole_table(run: Run) -> None:
    output = run("show", "gap8", "--model", "hwbmpq:resnet8", "--cost", "latency", "--json")
    content = json.loads(output)
    assert content["target"] == "gap8"
    table = content["costs"]["tables"]["latency"]
    assert (table["model"], table["unit"]) == ("gap8", "ms")
    assert table["figures"][0]["path"] == "clock.core_hz"
    assert table["rows"][0]["costs"]["layer1.0.conv1"]["W2A8"] > 0
    assert content["profile"]["clock"]["core_hz"]["value"] == 175e6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "jetsn"], "no hardware profile named 'jetsn'"),
        (["show", "mpic", "--bits", "4"], "--cost and --bits need a network"),
        (["show", "mpic", "--model", "hwbmpq:resnet8", "--cost", "latncy"], "did you mean latency?"),
        (
            ["show", "coral_edge_tpu", "--model", "hwbmpq:resnet8", "--bits", "4"],
            "does not run conv2d with 4-bit weights",
        ),
        (["compare", "mpic", "nobody", "--model", "hwbmpq:resnet8"], "no hardware profile named 'nobody'"),
        (["new", "../x"], "is not a name for a profile"),
        (["new", "a b"], "is not a name for a profile"),
        (["new", "x", "-o", "/dev/null/at/all"], "cannot write /dev/null/at/all/x.yaml"),
        (["new", ".hidden"], "is not a name for a profile"),
        (["new", "x", "--from", "jetson_nano@5w"], "a profile extends another one, not its mode '5w'"),
        (["show", "jetson_nano@"], "no hardware profile named 'jetson_nano'"),
        (["show", "JETSON_NANO"], "did you mean jetson_nano"),
        (["show", "x" * 300], "no hardware profile named"),
        (["new", "x", "--from", "nobody"], "no hardware profile named 'nobody'"),
        (["new", "x", "--from", "mpic", "--interactive"], "with --from, edit the file instead"),
        (["check", "nothing.yaml"], "nothing.yaml:1:1: no such file"),
    ],
)
def test_errors_are_one_sentence(arguments: list[str], message: str, run: Run) -> None:
    assert message in " ".join(run(*arguments, code=2).split())


@pytest.mark.parametrize("bits", ["x", "1", "2,99", ""])
def test_bits_are_checked_when_they_are_read(bits: str, capsys: Captured) -> None:
    assert main(["targets", "show", "mpic", "--model", "hwbmpq:resnet8", "--bits", bits]) == 2
    assert "--bits" in capsys.readouterr().err


def test_check_reports_all_files_and_exits_with_2(capsys: Captured, tmp_path: Path) -> None:
    good, bad, worse = (tmp_path / f"{name}.yaml" for name in ("good", "bad", "worse"))
    good.write_text("schema: hwbmpq/profile/v1\nname: good\ntitle: t\nextends: jetson_nano\n")
    bad.write_text("schema: hwbmpq/profile/v1\nname: bad\ntitle: t\nextends: mpic\nclok: 1\n")
    worse.write_text("a: [")
    assert main(["targets", "check", "good.yaml", "bad.yaml", "worse.yaml"]) == 2
    printed = capsys.readouterr()
    assert "ok good.yaml" in printed.out
    assert "assumed or uncertain: compute.efficiency" in printed.out
    assert "bad.yaml:5:1: clok: unknown key: did you mean `clock`?" in printed.err
    assert "worse.yaml:2:1: not YAML" in printed.err


def test_check_finds_unknown_cost_models_and_options(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    head = "schema: hwbmpq/profile/v1\nname: own\ntitle: t\nextends: mpic\n"
    path.write_text(head + "cost_models: {latency: {model: roofine}}\n")
    assert "cost_models.latency: no cost model named 'roofine': did you mean roofline?" in run(
        "check", "own.yaml", code=2
    )
    path.write_text(head + "cost_models: {latency: {model: roofline, weights: x}}\n")
    assert "weights: no such option" in run("check", "own.yaml", code=2)


def test_check_remarks_what_a_cost_model_will_miss(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "schema: hwbmpq/profile/v1\nname: own\ntitle: t\nextends: mpic\ncost_models: {latency: {model: roofline}}\n"
    )
    output = run("check", "own.yaml")
    assert (
        "latency: profile 'own' has no memory that holds weights, which the cost model 'roofline' needs"
        in output
    )
    content = json.loads(run("check", "own.yaml", "--json"))
    assert content[0]["problems"] == []
    assert len(content[0]["remarks"]) == 2  # latency, and energy, which is power times latency


def test_schema_prints_json(run: Run) -> None:
    content = json.loads(run("schema"))
    assert content["$schema"].startswith("https://json-schema.org/")
    assert content["additionalProperties"] is False
    level = content["$defs"]["MemoryLevel"]["properties"]
    assert {"bandwidth", "bandwidth_bytes_per_s"} <= set(level)
    assert "25.6 GB/s" in level["bandwidth"]["description"]


def test_names_in_a_profile_are_text_and_not_markup(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "schema: hwbmpq/profile/v1\nname: own\nextends: mpic\ntitle: '[red]x[/red] [/]'\ncaveats: ['[bold]y']\n"
        "sources: {s: {kind: '[i]k', title: '[blink]z'}}\n"
    )
    output = run("show", "own.yaml")
    for text in ("[red]x[/red] [/]", "[bold]y", "[blink]z"):
        assert text in output


def test_check_takes_names_and_can_be_strict(run: Run) -> None:
    assert "ok imx500" in run("check", "imx500")
    output = run("check", "imx500", "--strict", code=2)
    assert "cost_models: latency: profile 'imx500' has no compute.table row" in output


def test_a_full_disk_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "hwbmpq", "targets", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert result.returncode == 2
    assert "cannot write the output: No space left on device" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_ascii_terminal_gets_question_marks() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "hwbmpq", "targets", "show", "mpic"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (result.returncode, "int8?int8" in result.stdout) == (0, True)


def test_a_missing_profile_folder_is_remarked_upon(capsys: Captured) -> None:
    assert main(["targets", "list"]) == 0
    assert "mine, which is not a folder" in " ".join(capsys.readouterr().err.split())


def test_check_json_exits_with_2_as_well(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("a: [")
    assert main(["targets", "check", "bad.yaml", "--json"]) == 2
    assert "not YAML" in json.loads(capsys.readouterr().out)[0]["problems"][0]


def test_a_cost_without_a_network_is_refused(run: Run) -> None:
    assert "--cost and --bits need a network" in run("show", "mpic", "--cost", "latency", code=2)


def test_every_rate_is_shown_under_its_own_name(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = run("show", "mpic").splitlines()
    (wide,) = [line for line in lines if "any layer int8×int8" in line]
    (narrow,) = [line for line in lines if "any layer int2×int2" in line]
    assert "2.1 MAC/cycle" in wide
    assert "6.5 MAC/cycle" in narrow


def test_the_shares_count_tables_and_doubts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    rows = {line.split()[0]: line for line in run("list").splitlines() if line.strip()}
    assert rows["x86_onnxruntime"].split()[-1] == "100/0/0"  # two lookup tables, both measured
    assert rows["imx500"].split()[-1] == "25/25/50"  # the size and the energy are uncertain
    assert "l3 8 MiB" in rows["gap8"]  # the last memory that holds weights
    assert "2-8 16" in rows["pynq_z1_bismo"]


def test_show_adds_costs_to_the_figures_unless_it_is_to_be_brief(run: Run) -> None:
    whole = run("show", "mpic", "--model", "hwbmpq:resnet8", "--cost", "latency")
    brief = run("show", "mpic", "--model", "hwbmpq:resnet8", "--cost", "latency", "--brief")
    assert "Sources" in whole
    assert "Sources" not in brief
    assert whole.endswith(brief.partition("hwbmpq:resnet8 at")[2])
