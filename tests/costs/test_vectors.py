"""Every worked number of the reference vectors, from the shipped profiles and models."""

import json
from pathlib import Path
from typing import Any

import pytest

from hwbmpq.costs import FigureLog, get_cost_model
from hwbmpq.costs.accelerators import BitFusion, BitSerial, Ne16, gap8_cycles
from hwbmpq.costs.analytic import MacEnergy
from hwbmpq.hardware import HardwareProfile, load_profile
from hwbmpq.hardware.widths import WidthFinder, op_of
from hwbmpq.testing import conv_layer, linear_layer
from hwbmpq.values import Layer, Precision

VECTORS = json.loads(Path(__file__).with_name("vectors.json").read_text())
LAYERS = {
    "conv3x3_64_64_56": conv_layer(64, 64, size=56),
    "linear_4096_4096": linear_layer(4096, 4096),
    "resnet18/layer1.0.conv1": conv_layer(64, 64, size=56),
    "mobilenetv2/features.1.dw": conv_layer(32, 32, size=112, groups=32),
}
PER_MS = {"ms": 1.0, "us": 1e3}


def value_of(case: dict[str, Any], folder: Path) -> float:
    """What hwbmpq says for one case."""
    model, _, variant = case["model"].partition(".")
    layer = LAYERS[case["layer"]]
    precision = Precision(weight_bits=case["w_bits"], activation_bits=case["a_bits"])
    return {
        "weight_memory": lambda: cost("weight_memory", "generic", layer, precision),
        "activation_memory": lambda: cost("layer_working_set", "generic", layer, precision),
        "bops": lambda: cost("bops", "generic", layer, precision),
        "mac_energy": lambda: mac_energy(case, variant, layer, precision),
        "roofline": lambda: roofline(case, variant, layer, precision),
        "throughput_table": lambda: mpic(case, layer, precision),
        "ne16": lambda: Ne16().count(layer, pair("gap9_ne16", layer, precision)),
        "gap8_plinio": lambda: gap8_cycles(layer),
        "bit_serial": lambda: bismo(case, layer, precision),
        "bit_fusion": lambda: fusion(case, layer, precision, folder),
        "layer_lut": lambda: looked_up(case, variant, layer, precision, folder),
        "energy_per_op": lambda: cost("energy", variant, layer, precision),
    }[model]()


def cost(
    name: str, target: str | HardwareProfile, layer: Layer, precision: Precision, **options: Any
) -> float:
    profile = load_profile(target) if isinstance(target, str) else target
    return (
        get_cost_model(name, **options).tabulate([layer], profile, [precision]).total({layer.name: precision})
    )


def pair(target: str, layer: Layer, precision: Precision) -> Any:
    return WidthFinder(load_profile(target)).execution(op_of(layer), precision).pair


def mac_energy(case: dict[str, Any], variant: str, layer: Layer, precision: Precision) -> float:
    fixed = case.get("accumulator_bits", 32) == 32
    options: dict[str, Any] = {"mac": variant, "accumulator": 32 if fixed else "grown"}
    if case["unit"] == "pJ/MAC":
        figures = FigureLog(load_profile("generic"), "mac_energy")
        return MacEnergy(**options).per_mac(figures)(layer, pair("generic", layer, precision))
    return cost("mac_energy", "generic", layer, precision, traffic=variant == "vasquez2021", **options)


def roofline(case: dict[str, Any], variant: str, layer: Layer, precision: Precision) -> float:
    mode = "@5w" if case.get("mode") == "5W" else ""
    ms = cost("latency", variant + mode, layer, precision)
    return ms / 1e3 * 500e6 if case["unit"] == "cycle" else ms * PER_MS[case["unit"]]


def mpic(case: dict[str, Any], layer: Layer, precision: Precision) -> float:
    if case["unit"] == "uJ":
        return cost("energy", "mpic", layer, precision)
    return cost("latency", "mpic", layer, precision) * (250e3 if case["unit"] == "cycle" else 1.0)


def bismo(case: dict[str, Any], layer: Layer, precision: Precision) -> float:
    if case["unit"] == "ms":
        return cost("latency", "pynq_z1_bismo", layer, precision)
    figures = FigureLog(load_profile("pynq_z1_bismo"), "bit_serial")
    return BitSerial().cycles(figures)(layer, pair("pynq_z1_bismo", layer, precision))


def fusion(case: dict[str, Any], layer: Layer, precision: Precision, folder: Path) -> float:
    body = """
precisions: {weights: [int2, int4, int8], activations: [int2, int4, int8]}
clock: {core_hz: {value: 5.0e8, kind: assumed}}
compute: {array: {type: bit_fusion, dims: [16, 32], kind: assumed}}
"""
    profile = written(folder, body)
    figures = FigureLog(profile, "bit_fusion")
    return BitFusion(mapping=case["mapping"]).cycles(figures)(
        layer, WidthFinder(profile).execution("conv2d", precision).pair
    )


def looked_up(case: dict[str, Any], variant: str, layer: Layer, precision: Precision, folder: Path) -> float:
    if variant == "hawq_t4_tuned":
        milliseconds = cost("lookup_table", "nvidia_t4", layer, precision, per="batch")
        return round(milliseconds * 1e3, 2)  # the vector has two decimals
    geometry = {
        "op": op_of(layer),
        "in_channels": layer.in_channels,
        "out_channels": layer.out_channels,
        "kernel_size": layer.kernel_size,
        "stride": layer.stride,
        "groups": layer.groups,
        "out_h": layer.output_shape[2],
        "out_w": layer.output_shape[3],
        "w_bits": case["w_bits"],
        "a_bits": case["a_bits"],
    }
    table = {
        "schema": "hwbmpq/lut/v1",
        "device": "a device",
        "runtime": "a runtime",
        "source": {"title": "the case itself"},
        "unit": "ms",
        "key": list(geometry),
        "entries": [{**geometry, "macs": layer.macs, "value": case["value"]}],
    }
    (folder / "table.json").write_text(json.dumps(table))
    body = """
precisions: {weights: [int4, int8], activations: [int4, int8]}
lookup_tables: [{id: own, file: table.json, kind: assumed}]
"""
    return cost("lookup_table", written(folder, body), layer, precision)


def written(folder: Path, body: str) -> HardwareProfile:
    path = folder / "board.yaml"
    path.write_text(f"schema: hwbmpq/profile/v1\nname: board\ntitle: A board\nclass: npu\n{body}")
    return load_profile(path)


def identity(case: dict[str, Any]) -> str:
    widths = f"W{case['w_bits']}A{case['a_bits']}"
    return (
        f"{case['model']}-{case['layer']}-{widths}-{case['unit']}-{case.get('mapping', case.get('mode', ''))}"
    )


@pytest.mark.parametrize("case", VECTORS["cases"], ids=identity)
def test_vector(case: dict[str, Any], tmp_path: Path) -> None:
    value = value_of(case, tmp_path)
    if isinstance(case["value"], int):
        assert value == case["value"]
    else:
        assert value == pytest.approx(case["value"], rel=1e-9)


def test_the_vectors_layers_are_ours() -> None:
    for name, described in VECTORS["layers"].items():
        layer = LAYERS[name]
        assert (layer.parameters, layer.macs) == (described["params"], described["macs"])
