"""Every shipped profile: adding one adds its tests."""

import re
from pathlib import Path

import jsonschema
import pytest

from hwbmpq.costs import check_cost_models, cost_models, get_cost_model
from hwbmpq.hardware import (
    check_profile,
    first_last_precision,
    layer_candidates,
    list_profiles,
    load_profile,
    profile_json_schema,
    shipped_folder,
)
from hwbmpq.hardware.yaml_reader import parse_document
from hwbmpq.testing import conv_layer, linear_layer

FILES = sorted(shipped_folder().glob("*.yaml"))
NAMES = [path.stem for path in FILES if not path.stem.startswith("_")]
PROMISED = (
    "generic jetson_nano jetson_orin_nano raspberry_pi_4 raspberry_pi_5 stm32h743 stm32f746 gap8 gap9_ne16 mpic "
    "nvidia_t4 imx500 ethos_u55_256 coral_edge_tpu pynq_z1_bismo x86_onnxruntime"
).split()
NETWORK = [
    conv_layer(3, 16, size=32, name="stem", is_end=True),
    conv_layer(16, 16, size=32, name="conv3x3"),
    conv_layer(16, 32, size=32, kernel_size=1, name="conv1x1"),
    linear_layer(32, 10, name="head", is_end=True),
]


def test_the_promised_profiles_are_there() -> None:
    assert set(PROMISED) <= set(NAMES)
    assert {listing.name for listing in list_profiles()} == set(NAMES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_without_problems_in_every_mode(path: Path) -> None:
    profile = check_profile(path)
    for mode in profile.modes:
        assert load_profile(f"{path}@{mode}").mode == mode
    check_cost_models(profile)


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_source_that_can_be_found(name: str) -> None:
    profile = load_profile(name)
    for _, figure, _ in profile.figures():
        assert figure.src or figure.kind == "assumed"
    for source in profile.sources.values():
        assert len(source.title) > 10
        assert source.url is None or re.match(r"https://\S+$", source.url)
    used = {name for _, figure, _ in profile.figures() for name in figure.src}
    used |= {name for ref in profile.lookup_tables for name in ref.src} | set(profile.precisions.src)
    used |= set(profile.compute.array.src) if profile.compute.array else set()
    modes = str(profile.modes)
    assert all(source in used or source in modes for source in profile.sources), "a source that nothing cites"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_editors_that_use_the_json_schema_accept_it(path: Path) -> None:
    validator = jsonschema.Draft202012Validator(profile_json_schema())
    content = parse_document(path.read_bytes(), path.name).plain()
    content = {key: value for key, value in content.items() if value is not None}
    assert [error.message for error in validator.iter_errors(content)] == []


@pytest.mark.parametrize("name", NAMES)
def test_its_costs_can_be_had_for_a_small_network(name: str) -> None:
    """Each quantity that the profile has a model for, at the widths of the device."""
    profile = load_profile(name)
    bits = [8] if name == "imx500" else None  # no speed of narrower weights is published
    choices = layer_candidates(NETWORK, profile, bits)
    for quantity in profile.cost_models:
        table = get_cost_model(quantity).tabulate(NETWORK, profile, choices)
        for layer in NETWORK:
            assert all(value > 0 for value in table[layer.name].values())


def test_jetson_nano_stores_narrow_weights_and_computes_in_fp16() -> None:
    profile = load_profile("jetson_nano")
    narrow = [pair for pair in profile.pairs if not pair.weight.is_float]
    assert sorted(pair.weight.bits for pair in narrow) == [2, 4, 8]
    for pair in narrow:
        assert (pair.activation.name, pair.compute, pair.kernel) == ("fp16", "fp16", "user")
        assert (pair.precision.activation_bits, pair.training.activation_bits) == (16, 32)
    assert str(first_last_precision(profile)) == "W16A16"


@pytest.mark.parametrize("name", ["jetson_nano", "coral_edge_tpu", "ethos_u55_256", "gap8", "stm32h743"])
def test_devices_that_gain_no_speed_say_so(name: str) -> None:
    text = " ".join(load_profile(name).caveats)
    assert re.search("not make arithmetic faster|buys nothing|nothing to allocate|not time", text)


@pytest.mark.parametrize("name", ["jetson_nano", "gap8", "stm32h743", "raspberry_pi_5"])
def test_and_so_does_their_latency(name: str) -> None:
    """On a layer whose time is arithmetic, not reading its weights."""
    profile = load_profile(name)
    layers = [conv_layer(64, 64, size=56)]
    table = get_cost_model("latency").tabulate(layers, profile, layer_candidates(layers, profile, [4, 8]))
    assert table.is_flat


def test_devices_with_fast_narrow_kernels_gain() -> None:
    for name in ("mpic", "gap9_ne16", "nvidia_t4", "pynq_z1_bismo"):
        profile = load_profile(name)
        table = get_cost_model("latency").tabulate(
            NETWORK, profile, layer_candidates(NETWORK, profile, [4, 8])
        )
        narrow, wide = (value for _, value in sorted(table["conv3x3"].items()))
        assert narrow < 0.7 * wide


def test_lookup_tables_ship_for_three_devices() -> None:
    for name in ("nvidia_t4", "stm32h743", "x86_onnxruntime"):
        profile = load_profile(name)
        assert profile.cost_models["latency"].model == "lookup_table"
        for table in profile.tables.values():
            assert table.source.licence


def test_every_cost_model_that_a_profile_chooses_exists() -> None:
    for name in NAMES:
        for choice in load_profile(name).cost_models.values():
            assert choice.model in cost_models()
