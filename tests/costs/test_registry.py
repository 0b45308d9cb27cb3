"""The registry, its errors, and plug-ins."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwbmpq.costs import CostModel, CostModelError, CostTable, cost_models, get_cost_model, register
from hwbmpq.errors import UnknownNameError
from hwbmpq.hardware import load_profile
from hwbmpq.registry import COST_MODELS
from hwbmpq.testing import conv_layer
from hwbmpq.values import Precision

PROMISED = (
    "memory weight_memory stored_memory activation_memory layer_working_set largest_input flash ram bops mac_energy energy_per_op power_time "
    "latency energy roofline throughput_table lookup_table ne16 gap8 bit_serial bit_fusion"
).split()


@pytest.fixture
def _forget_afterwards() -> Iterator[None]:
    before = dict(COST_MODELS._known)
    yield
    COST_MODELS._known.clear()
    COST_MODELS._known.update(before)


def test_the_promised_models_are_there_and_explain_themselves() -> None:
    models = cost_models()
    assert set(PROMISED) <= set(models)
    for name in PROMISED:
        model = models[name].entry
        assert model is not None
        assert isinstance(model(), CostModel)
        assert model.__doc__
        assert getattr(model, "formula", "")
        assert getattr(model, "unit", "")


@pytest.mark.usefixtures("_forget_afterwards")
def test_a_registered_model_can_be_used_by_name_and_by_a_profile(tmp_path: Path) -> None:
    @register("reads")
    class Reads:
        """Weights read."""

        unit = "uJ"

        def __init__(self, times: int = 1) -> None:
            self.times = times

        def tabulate(self, layers, profile, precisions):  # type: ignore[no-untyped-def]
            def cost(layer, precision):  # type: ignore[no-untyped-def]
                return self.times * layer.weight_elements * precision.weight_bits

            return CostTable.additive("reads", layers, precisions, cost, unit="uJ")

    layer, precision = conv_layer(4, 4, size=8), Precision(weight_bits=4, activation_bits=8)
    table = get_cost_model("reads", times=3).tabulate([layer], load_profile("generic"), [precision])
    assert table.total({"conv": precision}) == 3 * 144 * 4
    path = tmp_path / "board.yaml"
    path.write_text(
        "schema: hwbmpq/profile/v1\nname: board\ntitle: t\nextends: generic\n"
        "cost_models: {energy: {model: reads, times: 2}}\n"
    )
    table = get_cost_model("energy").tabulate([layer], load_profile(path), [precision])
    assert (table.name, table.total({"conv": precision})) == ("energy", 2 * 144 * 4)


@pytest.mark.usefixtures("_forget_afterwards")
def test_a_name_is_registered_once() -> None:
    with pytest.raises(CostModelError, match="'bops' is already registered by hwbmpq"):
        register("bops")(cost_models()["ne16"].entry)  # type: ignore[type-var]


def test_a_model_must_tabulate() -> None:
    with pytest.raises(CostModelError, match="has no method tabulate"):
        register("nothing")(int)
    assert "nothing" not in cost_models()


def test_unknown_names_and_options_say_what_is_known() -> None:
    with pytest.raises(UnknownNameError, match="no cost model named 'latncy': did you mean latency"):
        get_cost_model("latncy")
    with pytest.raises(
        CostModelError, match=r"'roofline': weights: no such option \(its options: weights_in, activ"
    ):
        get_cost_model("roofline", weights="dram")
    with pytest.raises(CostModelError, match="'mac_energy': mac: Input should be 'horowitz45_fit'"):
        get_cost_model("mac_energy", mac="magic")


def hwbmpq(plugin_site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(plugin_site)}
    command = [sys.executable, "-m", "hwbmpq", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_an_installed_plug_in_shows_up_in_costs_list(plugin_site: Path) -> None:
    result = hwbmpq(plugin_site, "costs", "list", "--json")
    assert result.returncode == 0, result.stderr
    found = {entry["name"]: entry for entry in json.loads(result.stdout)}
    assert found["flash_wear"]["provider"] == "hwbmpq-wear 1.2.3"
    assert found["flash_wear"]["summary"] == "Flash pages written to store the weights."
    assert found["flash_wear"]["unit"] == "page"


def test_a_broken_plug_in_is_listed_and_breaks_nothing_else(plugin_site: Path) -> None:
    listed = {
        entry["name"]: entry for entry in json.loads(hwbmpq(plugin_site, "costs", "list", "--json").stdout)
    }
    assert "DoesNotExist" in listed["broken_plugin"]["error"]
    assert listed["memory"]["provider"] == "hwbmpq"  # a plug-in does not take a name away
    used = hwbmpq(
        plugin_site,
        "targets",
        "show",
        "mpic",
        "--model",
        "hwbmpq:resnet8",
        "--cost",
        "broken_plugin",
        "--json",
    )
    assert "cannot be loaded" in json.loads(used.stdout)["costs"]["missing"]["broken_plugin"]


def test_a_taken_name_is_said_to_be_refused(plugin_site: Path) -> None:
    assert (
        "memory of hwbmpq-wear 1.2.3 is not used: the name is ours"
        in hwbmpq(plugin_site, "costs", "list").stdout
    )


def test_a_model_that_extends_one_of_ours_has_its_own_name(plugin_site: Path) -> None:
    result = hwbmpq(
        plugin_site, "targets", "show", "jetson_nano", "--model", "hwbmpq:resnet8", "--cost", "slow_roofline"
    )
    assert result.returncode == 0, result.stderr
    assert "slow_roofline in us" in result.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "cost model 'raises' failed: ZeroDivisionError"),
        ("negative", "gave a cost that is negative or not a number"),
    ],
)
def test_a_defect_of_a_plug_in_is_named(name: str, message: str, plugin_site: Path) -> None:
    result = hwbmpq(
        plugin_site,
        "targets",
        "show",
        "mpic",
        "--model",
        "hwbmpq:resnet8",
        "--cost",
        name,
        "--cost",
        "memory",
    )
    assert (result.returncode, "Traceback" in result.stderr) == (0, False)
    assert message in " ".join(result.stdout.split())
    assert "memory in" in result.stdout


def test_a_plug_ins_cost_is_tabulated_on_the_command_line(plugin_site: Path) -> None:
    result = hwbmpq(
        plugin_site, "targets", "show", "mpic", "--model", "hwbmpq:resnet8", "--cost", "flash_wear", "--json"
    )
    assert result.returncode == 0, result.stderr
    totals = json.loads(result.stdout)["costs"]["totals"]["flash_wear"]
    assert totals["unit"] == "page"
    assert totals["W2A8"] < totals["W8A8"]


@pytest.mark.usefixtures("_forget_afterwards")
def test_an_unknown_option_of_a_plain_class_is_one_sentence() -> None:
    @register("plain")
    class Plain:
        unit = "bit"

        def tabulate(self, layers, profile, precisions):  # type: ignore[no-untyped-def]
            return None

    with pytest.raises(CostModelError, match="cost model 'plain': "):
        get_cost_model("plain", option=1)


def test_models_are_listed_in_order() -> None:
    assert list(cost_models()) == sorted(cost_models())
