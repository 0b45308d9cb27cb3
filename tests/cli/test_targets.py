"""``hwbmpq targets``."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hwbmpq.cli.main import main
from hwbmpq.hardware import load_profile
from hwbmpq.hardware.load import list_profiles

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("HWBMPQ_PROFILES", str(tmp_path / "mine"))


def run(capsys: Captured, *arguments: str, code: int = 0) -> str:
    assert main(["targets", *arguments]) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


@pytest.mark.parametrize("columns", ["80", "140", "60", "50"])
def test_list_names_every_profile_whatever_the_width(
    columns: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    output = run(capsys, "list")
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


def test_list_marks_the_users_own_and_the_broken(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.yaml").write_text(
        "schema: hwbmpq/profile/v1\nname: own\ntitle: t\nextends: mpic\n"
    )
    (tmp_path / "mine" / "sick.yaml").write_text("schema: 1\n")
    output = run(capsys, "list")
    assert "own *" in output
    assert "broken" in output
    assert "targets check" in output
    content = {entry["name"]: entry for entry in json.loads(run(capsys, "list", "--json"))}
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


def test_show_gives_every_figure_its_source(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    output = run(capsys, "show", "jetson_nano@5w")
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
def test_show_works_for_every_profile_with_a_network(name: str, capsys: Captured) -> None:
    output = run(capsys, "show", name, "--model", "hwbmpq:resnet8")
    profile = load_profile(name)
    assert f"hwbmpq:resnet8 at 3x32x32 on {name}" in output
    assert "memory in KiB, by weight width" in output
    assert "layer1.0.conv1" in output
    for quantity in profile.cost_models:
        assert f"{quantity} in" in output or f"no {quantity}:" in output
    assert all(len(line) <= 80 for line in output.splitlines())


def test_show_draws_bars_and_totals(capsys: Captured) -> None:
    output = run(capsys, "show", "mpic", "--model", "hwbmpq:resnet8", "--bits", "2,8", "--cost", "memory")
    (last,) = [line for line in output.splitlines() if line.startswith(" layer3.0.conv2")]
    assert "████" in last
    assert last.split()[1] == "9.00"
    (total,) = [line for line in output.splitlines() if line.startswith(" all layers")]
    assert total.split()[-2:] == ["19.05", "73.05"]


def test_show_says_when_it_does_not_fit(capsys: Captured) -> None:
    output = run(capsys, "show", "stm32f746", "--model", "hwbmpq:vgg16", "--cost", "flash", "--cost", "ram")
    assert "has to fit in flash (1.000 MiB): does not at W4A8, W8A8" in output
    assert "has to fit in sram (320.0 KiB): does at every width" in output


def test_show_hides_small_layers_of_large_networks(capsys: Captured) -> None:
    arguments = ("show", "generic", "--model", "timm:densenet121", "--cost", "memory", "--bits", "4")
    assert "smaller (--all)" in run(capsys, *arguments)
    assert len(run(capsys, *arguments, "--all").splitlines()) > 121


def test_show_json_has_the_whole_table(capsys: Captured) -> None:
    output = run(capsys, "show", "gap8", "--model", "hwbmpq:resnet8", "--cost", "latency", "--json")
    content = json.loads(output)
    assert content["target"] == "gap8"
    table = content["costs"]["tables"]["latency"]
    assert (table["model"], table["unit"]) == ("gap8", "ms")
    assert table["figures"][0]["path"] == "clock.core_hz"
    assert table["rows"][0]["costs"]["layer1.0.conv1"]["W2A2"] > 0
    assert content["profile"]["clock"]["core_hz"]["value"] == 175e6


def test_compare_shows_what_each_width_buys(capsys: Captured) -> None:
    output = run(capsys, "compare", "mpic", "jetson_nano", "--model", "hwbmpq:resnet8", "--cost", "latency")
    (line,) = [line for line in output.splitlines() if line.startswith(" W2")]
    assert line.split()[3] == "2.88x"
    assert line.split()[-1] == "1.00x"
    assert "jetson_nano: widths do not change latency" in output
    content = json.loads(run(capsys, "compare", "mpic", "gap8", "--model", "hwbmpq:resnet8", "--json"))
    assert content["mpic"]["totals"]["latency"]["W2"] < content["mpic"]["totals"]["latency"]["W8"]
    assert content["gap8"]["totals"]["latency"]["W2"] == content["gap8"]["totals"]["latency"]["W8"]


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
        (["new", "../x"], "is no name for a profile"),
        (["new", "a b"], "is no name for a profile"),
        (["new", "x", "-o", "/dev/null/at/all"], "cannot write /dev/null/at/all/x.yaml"),
        (["new", ".hidden"], "is no name for a profile"),
        (["new", "x", "--from", "jetson_nano@5w"], "a profile extends another one, not its mode '5w'"),
        (["show", "jetson_nano@"], "no hardware profile named 'jetson_nano'"),
        (["show", "JETSON_NANO"], "did you mean jetson_nano"),
        (["show", "x" * 300], "no hardware profile named"),
        (["new", "x", "--from", "nobody"], "no hardware profile named 'nobody'"),
        (["new", "x", "--from", "mpic", "--interactive"], "with --from, edit the file instead"),
        (["check", "nothing.yaml"], "nothing.yaml:1:1: no such file"),
    ],
)
def test_errors_are_one_sentence(arguments: list[str], message: str, capsys: Captured) -> None:
    assert message in " ".join(run(capsys, *arguments, code=2).split())


@pytest.mark.parametrize("bits", ["x", "1", "2,99", ""])
def test_bits_are_checked_when_they_are_read(bits: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["targets", "show", "mpic", "--model", "hwbmpq:resnet8", "--bits", bits])
    assert caught.value.code == 2
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


def test_check_finds_unknown_cost_models_and_options(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    head = "schema: hwbmpq/profile/v1\nname: own\ntitle: t\nextends: mpic\n"
    path.write_text(head + "cost_models: {latency: {model: roofine}}\n")
    assert "cost_models.latency: no cost model named 'roofine': did you mean roofline?" in run(
        capsys, "check", "own.yaml", code=2
    )
    path.write_text(head + "cost_models: {latency: {model: roofline, weights: x}}\n")
    assert "weights: no such option" in run(capsys, "check", "own.yaml", code=2)


def test_check_remarks_what_a_cost_model_will_miss(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "schema: hwbmpq/profile/v1\nname: own\ntitle: t\nextends: mpic\ncost_models: {latency: {model: roofline}}\n"
    )
    output = run(capsys, "check", "own.yaml")
    assert (
        "latency: profile 'own' has no memory that holds weights, which the cost model 'roofline' needs"
        in output
    )
    content = json.loads(run(capsys, "check", "own.yaml", "--json"))
    assert content[0]["problems"] == []
    assert len(content[0]["remarks"]) == 2  # latency, and energy, which is power times latency


def test_schema_prints_json(capsys: Captured) -> None:
    content = json.loads(run(capsys, "schema"))
    assert content["$schema"].startswith("https://json-schema.org/")
    assert content["additionalProperties"] is False
    level = content["$defs"]["MemoryLevel"]["properties"]
    assert {"bandwidth", "bandwidth_bytes_per_s"} <= set(level)
    assert "25.6 GB/s" in level["bandwidth"]["description"]


def test_names_in_a_profile_are_text_and_not_markup(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "schema: hwbmpq/profile/v1\nname: own\nextends: mpic\ntitle: '[red]x[/red] [/]'\ncaveats: ['[bold]y']\n"
        "sources: {s: {kind: '[i]k', title: '[blink]z'}}\n"
    )
    output = run(capsys, "show", "own.yaml")
    for text in ("[red]x[/red] [/]", "[bold]y", "[blink]z"):
        assert text in output


def test_one_width_is_said_to_be_nothing_to_allocate(capsys: Captured) -> None:
    output = run(
        capsys,
        "compare",
        "jetson_orin_nano",
        "coral_edge_tpu",
        "--model",
        "hwbmpq:resnet8",
        "--cost",
        "latency",
    )
    assert " W16" not in output
    assert "jetson_orin_nano: one width to choose from, W8: nothing to allocate" in output
    shown = run(capsys, "show", "jetson_orin_nano", "--model", "hwbmpq:resnet8", "--cost", "latency")
    (total,) = [line for line in shown.splitlines() if line.startswith(" all layers")]
    assert len(total.split()) == 3  # no total at W16, which only the ends have


def test_compare_says_what_its_numbers_are(capsys: Captured) -> None:
    output = " ".join(
        run(capsys, "compare", "nvidia_t4", "mpic", "--model", "hwbmpq:resnet8", "--cost", "latency").split()
    )
    assert "nvidia_t4: measured with a batch of 8, given for one input of it" in output
    assert "14 of 14 numbers are taken from neighbours" in output


def test_compare_leaves_out_a_device_that_lacks_the_widths(capsys: Captured) -> None:
    output = run(
        capsys,
        "compare",
        "coral_edge_tpu",
        "mpic",
        "--model",
        "hwbmpq:resnet8",
        "--bits",
        "4",
        "--cost",
        "memory",
    )
    assert (
        "coral_edge_tpu: layer 'layer1.0.conv1' (conv2d): profile 'coral_edge_tpu' does not run"
        in " ".join(output.split())
    )
    assert "37.05 KiB" in output


def test_products_of_activations_are_said_to_be_uncosted(capsys: Captured) -> None:
    output = run(
        capsys, "show", "raspberry_pi_5", "--model", "timm:vit_tiny_patch16_224", "--cost", "latency"
    )
    assert "its layers have 85.7% of the MACs; products of activations are in no cost" in " ".join(
        output.split()
    )


def test_promoted_widths_are_shown(capsys: Captured) -> None:
    output = run(capsys, "show", "mpic", "--model", "hwbmpq:resnet8", "--bits", "3,4", "--cost", "memory")
    assert "W3A4 runs as W4A4 (6 of 8 layers)" in output
    assert "widths do not change" not in output


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_numbers_and_device_names_are_never_cut(
    columns: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    table = run(capsys, "show", "gap9_ne16", "--model", "timm:resnet18", "--cost", "energy").partition(
        "energy in"
    )[2]
    numbers = [word for line in table.splitlines() if line.startswith(" layer1") for word in line.split()[1:]]
    assert numbers
    assert not any("…" in number for number in numbers)
    devices = ("mpic", "gap9_ne16", "jetson_nano", "stm32f746", "raspberry_pi_5")
    output = run(capsys, "compare", *devices, "--model", "hwbmpq:resnet8", "--cost", "memory")
    assert "…" not in output
    assert all(device in output for device in devices)


def test_check_takes_names_and_can_be_strict(capsys: Captured) -> None:
    assert "ok imx500" in run(capsys, "check", "imx500")
    output = run(capsys, "check", "imx500", "--strict", code=2)
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
    assert "mine, which is no folder" in " ".join(capsys.readouterr().err.split())


def test_check_json_exits_with_2_as_well(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("a: [")
    assert main(["targets", "check", "bad.yaml", "--json"]) == 2
    assert "not YAML" in json.loads(capsys.readouterr().out)[0]["problems"][0]


def test_a_cost_without_a_network_is_refused(capsys: Captured) -> None:
    assert "--cost and --bits need a network" in run(capsys, "show", "mpic", "--cost", "latency", code=2)


def test_activation_bits_reach_the_costs(capsys: Captured) -> None:
    arguments = ("compare", "mpic", "--model", "hwbmpq:resnet8", "--cost", "latency", "--json")
    same = json.loads(run(capsys, *arguments))["mpic"]["totals"]["latency"]
    wide = json.loads(run(capsys, *arguments, "--activation-bits", "8"))["mpic"]["totals"]["latency"]
    assert same["W2"] < wide["W2"] < wide["W8"] == same["W8"]
    shown = run(
        capsys,
        "show",
        "mpic",
        "--model",
        "hwbmpq:resnet8",
        "--cost",
        "latency",
        "--activation-bits",
        "widest",
    )
    assert "W2A8" in shown


def test_compare_repeats_the_caveats_of_the_devices(capsys: Captured) -> None:
    output = " ".join(
        run(capsys, "compare", "jetson_nano", "imx500", "--model", "hwbmpq:resnet8", "--bits", "8").split()
    )
    for name in ("jetson_nano", "imx500"):
        for caveat in load_profile(name).caveats:
            assert f"{name}: {caveat}" in output
    assert "imx500: rests on memory.sensor.size_bytes (uncertain)" in output


def test_every_rate_is_shown_under_its_own_name(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = run(capsys, "show", "mpic").splitlines()
    (wide,) = [line for line in lines if "any layer int8×int8" in line]
    (narrow,) = [line for line in lines if "any layer int2×int2" in line]
    assert "2.1 MAC/cycle" in wide
    assert "6.5 MAC/cycle" in narrow


def test_the_shares_count_tables_and_doubts(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    rows = {line.split()[0]: line for line in run(capsys, "list").splitlines() if line.strip()}
    assert rows["x86_onnxruntime"].split()[-1] == "100/0/0"  # two lookup tables, both measured
    assert rows["imx500"].split()[-1] == "25/25/50"  # the size and the energy are uncertain
    assert "l3 8 MiB" in rows["gap8"]  # the last memory that holds weights
    assert "2-8 16" in rows["pynq_z1_bismo"]


def test_the_worst_step_is_named(capsys: Captured) -> None:
    output = run(capsys, "show", "gap8", "--model", "hwbmpq:resnet8", "--cost", "ram", "--bits", "2,8")
    (line,) = [line for line in output.splitlines() if line.startswith(" W2A2")]
    assert line.split() == ["W2A2", "96.00", "KiB", "add"]


def test_default_budgets_are_held_against_each_width(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        "schema: hwbmpq/profile/v1\nname: own\ntitle: t\nextends: mpic\n"
        "budgets: {memory: 12x, latency: 20 ms, bops: 30%}\n"
    )
    output = run(
        capsys,
        "show",
        "own.yaml",
        "--model",
        "hwbmpq:resnet8",
        "--cost",
        "memory",
        "--cost",
        "latency",
        "--cost",
        "bops",
    )
    # 74,672 weights: 12x is 24.9 KB = 24.3 KiB, between 19.05 at 2 bits and 37.05 at 4
    assert re.search(r"default budget 12x \(24.\d+ KiB\): not met at W4A4, W8A8", output)
    assert "default budget 20 ms (20.00 ms): not met at W8A8" in output
    assert re.search(r"default budget 30% \(.* Mbit-op\): not met at W8A8", output)


def test_memory_that_is_shared_is_said_to_be(capsys: Captured) -> None:
    output = run(capsys, "show", "imx500", "--model", "hwbmpq:resnet8", "--cost", "memory")
    assert "does at every width, by itself: weights and activations share it" in " ".join(output.split())


def test_a_column_without_numbers_is_explained(capsys: Captured) -> None:
    output = run(capsys, "compare", "mpic", "x86_onnxruntime", "imx500", "--model", "hwbmpq:resnet8")
    assert "x86_onnxruntime: no energy: it has no model for it" in output
    shown = " ".join(run(capsys, "show", "imx500", "--model", "hwbmpq:resnet8").split())
    assert "(it has rows for int8×int8: choose widths with --bits)" in shown


def test_no_note_is_given_twice(capsys: Captured) -> None:
    content = json.loads(
        run(capsys, "show", "jetson_nano", "--model", "hwbmpq:resnet8", "--cost", "energy", "--json")
    )
    notes = content["costs"]["notes"]["energy"]
    assert len(notes) == len(set(notes)) > 2
