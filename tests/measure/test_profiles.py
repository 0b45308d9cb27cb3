"""Profiles and tables from measurements."""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hwbmpq
from hwbmpq.errors import HwbmpqError
from hwbmpq.hardware.lookup_table import TableEntry
from hwbmpq.measure import Measurement, Results, findings, profiles, write_profile
from hwbmpq.measure.profiles import device_name
from hwbmpq.measure.results import parse_results
from hwbmpq.values import Precision

Sign = Callable[[Mapping[str, Any]], dict[str, Any]]
W2A8, W4A8, W8A8, W32A32 = (Precision.parse(text) for text in ("W2A8", "W4A8", "W8A8", "W32A32"))


@pytest.fixture
def measurement(parsed: Results) -> Measurement:
    return Measurement.of(parsed)


def test_a_profile_is_written_with_its_table_and_loads(measurement: Measurement, tmp_path: Path) -> None:
    profile = write_profile(measurement, "acme", folder=tmp_path)
    table = profile.lookup_tables[0]
    assert table.file == f"acme_layers-{str(table.sha256)[:8]}.json"
    assert {path.name for path in tmp_path.iterdir()} == {"acme.yaml", table.file}
    assert {str(pair.precision) for pair in profile.pairs} == set(measurement.results.manifest.widths)
    assert [pair.ops for pair in profile.pairs if str(pair.precision) == "W4A32"] == [("linear",)]
    assert profile.constraints.first_last is not None
    assert profile.constraints.first_last.w.bits == 16
    assert profile.lookup_tables[0].miss == "interpolated"
    assert hwbmpq.costs.check_cost_models(profile) == ()


def test_pairs_of_one_kernel_have_one_value_and_say_why(measurement: Measurement, tmp_path: Path) -> None:
    table = write_profile(measurement, "acme", folder=tmp_path).tables["layers"]
    entries = {(e.w_bits, e.a_bits): e for e in table.entries if e.op == "conv2d"}
    assert entries[2, 8].value == entries[4, 8].value == pytest.approx(entries[32, 32].value / 2, rel=1e-3)
    assert entries[4, 8].note == "weights are widened to int8"
    assert entries[8, 8].value == pytest.approx(entries[32, 32].value * 0.8, rel=1e-3)
    assert (entries[8, 8].note, entries[8, 8].kernel, entries[8, 8].count) == (None, "QLinearConv", 4)


def test_the_record_says_how_it_was_measured(measurement: Measurement, tmp_path: Path) -> None:
    record = write_profile(measurement, "acme", folder=tmp_path).tables["layers"].measurement
    assert record["machine"]["cpu"] == "Acme"
    assert (record["threads"], record["rounds"], record["reference_us"]) == (1, 4, 500.0)
    assert record["models"] == ["hwbmpq:tiny at 8x12x12"]
    assert set(record["leave_one_out_error"]) >= {"float32", "int8"}


def test_operations_between_layers_are_in_the_table(measurement: Measurement, tmp_path: Path) -> None:
    overheads = write_profile(measurement, "acme", folder=tmp_path).tables["layers"].overheads
    assert overheads is not None
    by_name = {overhead.op: overhead for overhead in overheads.operations}
    assert (overheads.per_run, overheads.integer_bits) == (20.0, 8)
    assert (by_name["add"].fixed, by_name["add"].per_element) == pytest.approx((4.0, 1e-3))
    assert by_name["dequantize"].per_element == pytest.approx(2e-3)


def test_no_operation_takes_less_than_any_node_does(measurement: Measurement, tmp_path: Path) -> None:
    """Dequantizing starts at 0 on the made-up device, and a node takes 1 us."""
    overheads = write_profile(measurement, "acme", folder=tmp_path).tables["layers"].overheads
    assert overheads is not None
    assert {overhead.op: overhead.fixed for overhead in overheads.operations}["dequantize"] == 1.0


def test_nothing_is_overwritten_unasked(measurement: Measurement, tmp_path: Path) -> None:
    write_profile(measurement, "acme", folder=tmp_path)
    with pytest.raises(HwbmpqError, match="exists"):
        write_profile(measurement, "acme", folder=tmp_path)
    write_profile(measurement, "acme", folder=tmp_path, overwrite=True)


@pytest.fixture
def other(made_up: dict[str, Any], sign: Sign) -> Measurement:
    """Of another device."""
    content = copy.deepcopy(made_up)
    content["machine"]["cpu"] = "Other"
    return Measurement.of(parse_results(sign(content), "made up"))


def test_a_replaced_profile_takes_its_table_along(
    measurement: Measurement, other: Measurement, tmp_path: Path
) -> None:
    write_profile(measurement, "acme", folder=tmp_path)
    write_profile(measurement, "acme_2", folder=tmp_path)
    profile = write_profile(other, "acme", folder=tmp_path, overwrite=True)
    assert {path.name for path in tmp_path.glob("acme_layers*")} == {profile.lookup_tables[0].file}
    assert hwbmpq.load_profile(str(tmp_path / "acme.yaml")).tables["layers"].device.startswith("Other")
    assert hwbmpq.load_profile(str(tmp_path / "acme_2.yaml")).tables["layers"].device.startswith("Acme")


def test_a_table_that_a_copy_of_the_profile_names_stays(
    measurement: Measurement, other: Measurement, tmp_path: Path
) -> None:
    write_profile(measurement, "acme", folder=tmp_path)
    text = (tmp_path / "acme.yaml").read_text().replace("name: acme", "name: mine")
    (tmp_path / "mine.yaml").write_text(text)
    write_profile(other, "acme", folder=tmp_path, overwrite=True)
    assert hwbmpq.load_profile(str(tmp_path / "mine.yaml")).tables["layers"].device.startswith("Acme")


def test_a_crash_before_the_yaml_leaves_the_old_profile_whole(
    measurement: Measurement, other: Measurement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(measurement, "acme", folder=tmp_path)
    real = profiles._replace

    def failing(path: Path, content: bytes) -> None:
        if path.suffix == ".yaml":
            raise OSError("no space")
        real(path, content)

    monkeypatch.setattr(profiles, "_replace", failing)
    with pytest.raises(HwbmpqError, match="no space"):
        write_profile(other, "acme", folder=tmp_path, overwrite=True)
    assert hwbmpq.load_profile(str(tmp_path / "acme.yaml")).tables["layers"].device.startswith("Acme")


@pytest.mark.parametrize("name", ["../evil", "a/b", "", "..", "a b", "/abs"])
def test_a_name_is_no_path(measurement: Measurement, tmp_path: Path, name: str) -> None:
    place = tmp_path / "inside"
    with pytest.raises(HwbmpqError, match="not a valid name for a profile"):
        write_profile(measurement, name, folder=place)
    assert list(tmp_path.iterdir()) == []


def test_texts_from_elsewhere_cannot_leave_their_quotes(
    made_up: dict[str, Any], sign: Sign, tmp_path: Path
) -> None:
    content = copy.deepcopy(made_up)
    content["machine"]["cpu"] = 'x"\\ , class: gpu, # {} '
    profile = write_profile(Measurement.of(parse_results(sign(content), "made up")), "acme", folder=tmp_path)
    assert profile.device_class == "cpu"
    assert content["machine"]["cpu"] in profile.title


def test_the_findings_are_what_was_measured(measurement: Measurement) -> None:
    said = " ".join(findings(measurement))
    assert "Convolutions with weights of 7 bits or fewer take 0.50 of float's time here" in said
    assert "with 8-bit weights beside 8-bit activations 0.80" in said
    assert "2-bit and 4-bit weights beside 8-bit activations run as int8" in said
    assert "fewer bits buy size, not time" in said
    assert "2 bits 0.70, 4 bits 0.70, 8 bits 0.70 of float's time; they buy time as well as size" in said


def test_the_findings_change_with_the_data(made_up: dict[str, Any], sign: Sign) -> None:
    content = copy.deepcopy(made_up)
    for entry in content["manifest"]["kernels"]:
        if entry.get("form") in ("int8", "uint8"):
            us = entry["geometry"]["macs"] * 3e-3
            content["times"][entry["id"]]["ops"]["QLinearConv"]["us"] = [us + 2] * 4
        if str(entry.get("form")).startswith("nbits"):
            content["times"][entry["id"]]["ops"]["Conv"]["us"] = [entry["geometry"]["macs"] * 2e-3 + 2] * 4
    said = " ".join(findings(Measurement.of(parse_results(sign(content), "made up"))))
    assert "8-bit convolutions take 3.00 of float's time here" in said
    assert "they buy size, not time." in said


def _with_float_us(content: dict[str, Any], shares: Callable[[int], float], us_per_mac: float) -> None:
    """Integer layers take a share of float's time that depends on their MACs."""
    for entry in content["manifest"]["kernels"]:
        macs = entry.get("geometry", {}).get("macs", 0)
        ops = content["times"][entry["id"]]["ops"]
        if entry.get("form") == "float32":
            ops["Conv"]["us"] = [macs * us_per_mac + 2] * 4
        if entry.get("form") in ("int8", "uint8"):
            ops["QLinearConv"]["us"] = [macs * us_per_mac * shares(macs) + 2] * 4


def test_tiny_layers_are_left_out_of_the_shares(made_up: dict[str, Any], sign: Sign) -> None:
    """The linear layers have 10240 and 1536 MACs: 102 us and 15 us, of which the latter takes five times as long."""
    content = copy.deepcopy(made_up)
    _with_float_us(content, lambda macs: 5.0 if macs < 2000 else 0.4, us_per_mac=1e-2)
    said = " ".join(findings(Measurement.of(parse_results(sign(content), "made up"))))
    assert "8-bit linear layers take 0.40 of float's time here" in said
    assert "dequantizing around them." in said


def test_where_there_are_only_tiny_layers_it_is_said(made_up: dict[str, Any], sign: Sign) -> None:
    content = copy.deepcopy(made_up)
    _with_float_us(content, lambda macs: 5.0, us_per_mac=1e-3)
    sentences = findings(Measurement.of(parse_results(sign(content), "made up")))
    remark = "(only layers of a few microseconds were measured)"
    (linear,) = [sentence for sentence in sentences if "8-bit linear layers take 5.00" in sentence]
    (convolutions,) = [sentence for sentence in sentences if "8-bit convolutions take 5.00" in sentence]
    (weight_only,) = [sentence for sentence in sentences if "MatMulNBits" in sentence]
    (wide,) = [sentence for sentence in sentences if sentence.startswith("16-bit")]
    assert remark in linear
    assert remark not in convolutions
    assert f"64→32 {remark}" in weight_only
    assert "linear layers" not in wide


def test_where_sums_are_wide_eight_bit_weights_take_the_time_of_narrower_ones(
    made_up: dict[str, Any], sign: Sign, tmp_path: Path
) -> None:
    content = copy.deepcopy(made_up)
    content["machine"]["flags"] = ["avx2", "avx512_vnni"]
    vnni = Measurement.of(parse_results(sign(content), "made up"))
    said = " ".join(findings(vnni))
    assert "8-bit convolutions take 0.50 of float's time here" in said
    assert "2-bit, 4-bit and 8-bit weights beside 8-bit activations run as int8" in said
    entries = write_profile(vnni, "acme", folder=tmp_path).tables["layers"].entries
    by_width = {(entry.w_bits, entry.a_bits): entry.value for entry in entries if entry.op == "conv2d"}
    assert by_width[8, 8] == by_width[4, 8] != by_width[32, 32]


def test_costs_of_a_network_rest_on_it(measurement: Measurement, tmp_path: Path) -> None:
    profile = write_profile(measurement, "acme", folder=tmp_path)
    model = hwbmpq.models.load_model("hwbmpq:resnet8", device="meta")
    graph = hwbmpq.describe(model.network, model.example_input())
    costs = hwbmpq.costs.tabulate(graph, profile, bits=[2, 4, 8], activation_bits=8)
    table = costs.table("latency")
    assert costs.total("latency", 2) == costs.total("latency", 4) < costs.total("latency", 8)
    assert (
        "W2A8 and W4A8 take the same time in every layer: between them, fewer bits buy size, not time"
        in table.notes
    )
    assert all("interpolated" in origin for row in table.origins.values() for origin in row.values())
    assert table.rows[0].constant > 0


def test_a_plan_under_a_latency_budget_says_what_bits_buy(measurement: Measurement, tmp_path: Path) -> None:
    profile = write_profile(measurement, "acme", folder=tmp_path)
    model = hwbmpq.models.load_model("hwbmpq:resnet8", device="meta")
    graph = hwbmpq.describe(model.network, model.example_input())
    space = hwbmpq.pipeline.build_search_space(graph, profile, {"latency": "90%"}, bits=[2, 4, 8])
    sensitivity = hwbmpq.Sensitivity(method="uniform", scores={layer.name: 1.0 for layer in graph})
    plan = hwbmpq.pipeline.plan(space, sensitivity, with_explanation=False)
    assert plan.costs["latency"].total <= space.limits["latency"]
    assert any("W2A8 and W4A8 take the same time" in remark for remark in plan.remarks)
    assert any("take 0.50 of float's time" in remark for remark in plan.remarks)


def test_an_interrupted_measurement_says_so(made_up: dict[str, Any], sign: Sign, tmp_path: Path) -> None:
    content = copy.deepcopy(made_up)
    dropped = [entry["id"] for entry in content["manifest"]["kernels"] if entry.get("form") == "qdq16"]
    for ident in dropped:
        del content["times"][ident]
    content["is_complete"] = False
    profile = write_profile(Measurement.of(parse_results(sign(content), "made up")), "acme", folder=tmp_path)
    assert any(note.startswith("interrupted: ") for note in profile.tables["layers"].notes)
    assert "The measurement was interrupted: 4 of 74 kernels are missing." in profile.caveats
    assert profile.tables["layers"].measurement["missing_kernels"] == 4
    assert "W16A16" not in {str(pair.precision) for pair in profile.pairs}
    assert profile.constraints.first_last is not None
    assert profile.constraints.first_last.w.bits == 8


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_part_from_which_nothing_can_be_estimated_is_not_to_be_trusted(
    made_up: dict[str, Any], sign: Sign, is_complete: bool
) -> None:
    content = copy.deepcopy(made_up)
    content["is_complete"] = is_complete
    for index, entry in enumerate(content["manifest"]["kernels"]):
        if entry.get("form") == "float32":  # times that follow no law
            content["times"][entry["id"]]["ops"]["Conv"]["us"] = [10.0 ** (index % 5) * 100] * 4
    said = " ".join(findings(Measurement.of(parse_results(sign(content), "made up"))))
    assert ("Predictions are not to be trusted: " in said) is not is_complete
    assert ("(float32)" in said) is not is_complete


def test_estimates_are_tried_on_a_sample(parsed: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def counted(entries: Sequence[TableEntry]) -> tuple[float, ...]:
        tried.append(len(entries))
        return (0.25,)

    monkeypatch.setattr("hwbmpq.measure.measurement.leave_one_out", counted)
    one = Measurement.of(parsed)
    many = replace(one, layers=tuple(layer for layer in one.layers if layer.program == "float32") * 375)
    assert len(many.layers) == 1500
    assert many.estimate_errors == {"float32": 0.25}
    assert tried == [200]


def test_without_layers_there_is_no_profile(made_up: dict[str, Any], sign: Sign) -> None:
    content = copy.deepcopy(made_up)
    for entry in content["manifest"]["kernels"]:
        if "form" in entry:
            del content["times"][entry["id"]]
            content["failed"][entry["id"]] = "no such kernel"
    with pytest.raises(HwbmpqError, match="no layer was measured") as caught:
        Measurement.of(parse_results(sign(content), "made up"))
    assert "no such kernel" in caught.value.hint


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["avx2"], "Acme (AVX2, no VNNI)"),
        (["avx2", "avx512f", "avx512_vnni"], "Acme (AVX2, AVX-512, VNNI)"),
        (["asimd"], "Acme (NEON, no dotprod)"),
        (["asimd", "asimddp"], "Acme (NEON, dotprod)"),
        ([], "Acme"),
    ],
)
def test_the_device_is_named_with_what_matters(parsed: Results, flags: list[str], name: str) -> None:
    assert device_name(parsed.machine.model_copy(update={"flags": tuple(flags)})) == name


def test_a_table_has_one_entry_a_line(measurement: Measurement, tmp_path: Path) -> None:
    profile = write_profile(measurement, "acme", folder=tmp_path)
    text = (tmp_path / profile.lookup_tables[0].file).read_text()
    entries = json.loads(text)["entries"]
    assert sum(line.strip().startswith('{"op"') for line in text.splitlines()) == len(entries)
