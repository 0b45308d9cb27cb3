"""Everything that is chosen by name: the registry itself, and a plug-in with one entry of each kind."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hwbmpq import registry
from hwbmpq.errors import HwbmpqError, UnknownNameError
from hwbmpq.registry import DATA_SOURCES, SENSITIVITIES, Registry, _has_method

ALL = {
    name: value for name, value in vars(registry).items() if isinstance(value, Registry) and name.isupper()
}
PLAN = ("plan", "--model", "hwbmpq:resnet8", "--target", "mpic", "--budget", "memory=12x", "--json")
PLAIN = (*PLAN, "--sensitivity", "weight-error")
SMALL = ("--train-images", "16", "--test-images", "8", "--batch-size", "8", "--epochs", "2", "--json")
COMPRESS = ("compress", "--model", "hwbmpq:resnet8", "--target", "mpic", "--budget", "memory=12x", *SMALL)


class Wagon:
    def roll(self) -> str:
        return "away"


@pytest.fixture
def wagons(monkeypatch: pytest.MonkeyPatch) -> Registry[Any]:
    """A registry with one entry of ours (a module that does not exist), and three of plug-ins."""
    points = {
        "red": EntryPoint("red", f"{__name__}:Wagon", "wagons"),
        "broken": EntryPoint("broken", f"{__name__}:Nothing", "wagons"),
        "wrong": EntryPoint("wrong", f"{__name__}:ALL", "wagons"),
        "our_own": EntryPoint("our_own", f"{__name__}:Wagon", "wagons"),
    }
    monkeypatch.setattr(registry, "_entry_points", lambda group: points if group == "wagons" else {})
    return Registry("wagon", "wagons", {"our_own": "hwbmpq.nowhere"}, check=_has_method("roll()"))


def test_names_are_listed_without_importing_anything(wagons: Registry[Any]) -> None:
    assert wagons.names() == tuple(wagons) == ("our_own", "red", "broken", "wrong")
    assert "red" in wagons
    assert "blue" not in wagons
    assert len(wagons) == 4


def test_an_unknown_name_is_answered_with_a_close_one(wagons: Registry[Any]) -> None:
    with pytest.raises(UnknownNameError, match="no wagon named 'rad': did you mean red") as raised:
        wagons.get("rad")
    assert raised.value.hint == "use one of our_own, red, broken, wrong"


@pytest.mark.parametrize("name", ["our-own", "our_own"])
def test_dashes_are_as_good_as_underscores(name: str, wagons: Registry[Any]) -> None:
    assert wagons.resolve(name) == "our_own"


def test_an_entry_is_loaded_when_it_is_asked_for(wagons: Registry[Any]) -> None:
    assert wagons["red"] is Wagon
    assert wagons.registration("red").provider == f"{__name__}:Wagon"  # a distribution, if there is one


def test_a_name_is_given_once(wagons: Registry[Any]) -> None:
    wagons.register("blue")(Wagon)
    with pytest.raises(HwbmpqError, match=f"wagon 'blue' is already registered by {__name__}"):
        wagons.add("blue", Wagon)
    wagons.remove("blue")
    assert wagons.add("blue", Wagon) is Wagon


def test_a_name_of_ours_cannot_be_taken(wagons: Registry[Any]) -> None:
    with pytest.raises(HwbmpqError, match="'our_own' is already registered by hwbmpq"):
        wagons.add("our_own", Wagon)
    assert [(found.name, found.error) for found in wagons.refused()] == [("our_own", "the name is ours")]


def test_a_record_belongs_to_who_wrote_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    from hwbmpq.data.registry import DataSource

    monkeypatch.setattr(DATA_SOURCES, "_known", {})
    with pytest.raises(HwbmpqError, match="'digits' is already registered by hwbmpq"):
        DATA_SOURCES.add("digits", DataSource(form="digits", description="", open=lambda request: request))


def test_a_broken_plug_in_is_named_and_breaks_nothing(wagons: Registry[Any]) -> None:
    with pytest.raises(
        HwbmpqError, match=r"wagon 'broken' of .* cannot be loaded: AttributeError: .*Nothing"
    ):
        wagons.get("broken")
    with pytest.raises(HwbmpqError, match=r"wagon 'wrong' .*: dict has no method roll\(\)"):
        wagons.get("wrong")
    wagons.add("our_own", Wagon, provider="hwbmpq")
    assert set(wagons.values()) == {Wagon}
    assert [name for name, found in wagons.registrations().items() if found.error] == ["broken", "wrong"]


def test_a_broken_solver_does_not_stop_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    from hwbmpq.allocate.solvers import SolverError, solvers_for

    points = {"broken": EntryPoint("broken", f"{__name__}:Nothing", "hwbmpq.solvers")}
    monkeypatch.setattr(registry, "_entry_points", lambda group: points)
    assert {solver.name for solver in solvers_for("auto")} >= {"highs"}
    with pytest.raises(SolverError, match=r"broken: AttributeError: .*Nothing"):
        list(solvers_for("broken"))
    registry.SOLVERS.remove("broken")


def test_an_entry_must_have_what_is_asked_of_its_kind(wagons: Registry[Any]) -> None:
    with pytest.raises(HwbmpqError, match=r"wagon 'blue': int has no method roll\(\)"):
        wagons.add("blue", int)


def test_the_old_name_of_an_entry_is_deprecated(wagons: Registry[Any]) -> None:
    with pytest.warns(DeprecationWarning, match=r"Registration.model is now Registration.entry"):
        assert wagons.registration("red").model is Wagon


@pytest.mark.parametrize("kind", ALL)
def test_every_name_of_ours_can_be_loaded(kind: str) -> None:
    for name in ALL[kind].ours:
        assert ALL[kind].get(name) is not None
        assert ALL[kind].registration(name).provider == "hwbmpq"


def test_names_need_no_torch() -> None:
    code = (
        "import sys; from hwbmpq import registry as r\n"
        f"print([getattr(r, kind).names() for kind in {sorted(ALL)}], 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip().endswith("False")
    assert "'enbg'" in result.stdout


Run = Callable[..., Any]


@pytest.fixture
def run(plugin_site: Path, tmp_path: Path) -> Run:
    """``hwbmpq …`` where the plug-in is installed: what it printed, read as JSON."""

    def typed(*words: str) -> Any:
        result = plugged_in(plugin_site, tmp_path, *words)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return typed


def plugged_in(site: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.append({str(site)!r})\nfrom hwbmpq.cli.main import main\nraise SystemExit(main())"
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def test_a_cost_model_of_a_plug_in_takes_a_budget(run: Run) -> None:
    found = run(*PLAIN, "--budget", "flash_wear=11")
    assert found["costs"]["flash_wear"]["total"] <= 11


def test_a_sensitivity_of_a_plug_in(run: Run) -> None:
    found = run(*PLAN, "--sensitivity", "parameter-count")
    assert found["sensitivity"]["method"] == "parameter_count"


def test_an_objective_of_a_plug_in(run: Run) -> None:
    assert run(*PLAIN, "--objective", "squared")["objective"] == "squared"


def test_a_solver_of_a_plug_in(run: Run) -> None:
    assert "second_highs" in json.dumps(run(*PLAIN, "--solver", "second-highs"))


def test_method_data_source_and_export_format_of_a_plug_in(run: Run, tmp_path: Path) -> None:
    found = run(*COMPRESS, "--method", "narrowest", "--data", "more_noise", "--run-dir", "run")
    assert (found["method"], found["data"]) == ("narrowest", "more_noise")
    exported = run("export", "run", "--format", "widths", "--json")
    assert Path(exported["file"]) == Path("run/model.widths.json")
    widths = json.loads((tmp_path / exported["file"]).read_text())
    assert len(widths) == exported["layers"]
    assert sorted(widths.values())[0] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            (*PLAN, "--sensitivity", "broken_plugin"),
            "sensitivity 'broken_plugin' of hwbmpq-wear 1.2.3 cannot",
        ),
        ((*PLAN, "--sensitivity", "not_a_method"), "int has no method measure(inputs)"),
        ((*PLAN, "--sensitivity", "parameter_cuont"), "did you mean parameter-count"),
        ((*PLAIN, "--objective", "sqared"), "no objective named 'sqared': did you mean squared?"),
        ((*PLAIN, "--solver", "second_high"), "did you mean second-highs"),
        ((*COMPRESS, "--method", "narowest"), "no method named 'narowest': did you mean narrowest?"),
        ((*COMPRESS, "--data", "more_nose"), "no data source named 'more_nose': did you mean more-noise?"),
        ((*COMPRESS, "--task", "eror_rate"), "no task named 'eror_rate': did you mean error-rate?"),
        ((*COMPRESS, "--task", "unfinished"), "task unfinished has no measure(outputs, targets)"),
        (("export", "run", "--format", "width"), "no export format named 'width': did you mean widths?"),
    ],
)
def test_a_name_that_cannot_be_used_is_answered_in_one_sentence(
    words: tuple[str, ...], message: str, plugin_site: Path, tmp_path: Path
) -> None:
    result = plugged_in(plugin_site, tmp_path, *words)
    assert (result.returncode, "Traceback" in result.stderr) == (2, False)
    assert message in " ".join(result.stderr.split())


def test_help_lists_the_names_of_plug_ins(plugin_site: Path, tmp_path: Path) -> None:
    printed = " ".join(plugged_in(plugin_site, tmp_path, "compress", "--help").stdout.split())
    for name in ("narrowest", "squared", "second-highs", "parameter-count", "more-noise"):
        assert name in printed
    assert "widths" in plugged_in(plugin_site, tmp_path, "export", "--help").stdout


def test_settings_know_what_plug_ins_add(monkeypatch: pytest.MonkeyPatch) -> None:
    from hwbmpq.training import resolve_settings

    base = {"model": "hwbmpq:resnet8", "target": "mpic"}
    with pytest.raises(UnknownNameError, match="no sensitivity named 'own'"):
        resolve_settings({**base, "sensitivity": "own"})
    monkeypatch.setattr(SENSITIVITIES, "_known", dict(SENSITIVITIES._known))
    SENSITIVITIES.add("own", SimpleNamespace(measure=print, needs_data=False))
    assert resolve_settings({**base, "sensitivity": "own"}).sensitivity == "own"


def test_a_task_of_a_plug_in(run: Run, tmp_path: Path) -> None:
    found = run(*COMPRESS, "--data", "fake", "--task", "error-rate", "--run-dir", "run")
    assert found["task"] == "error_rate"
    assert found["metric"] == {"name": "error rate", "higher_is_better": False, "is_share": True}
    assert 0 <= found["test_metric"] <= 1
    assert run("evaluate", "run", "--json")["test_metric"] == found["test_metric"]


def test_a_weight_quantizer_of_a_plug_in(run: Run) -> None:
    assert run(*COMPRESS, "--quantizer", "second-paper", "--data", "fake")["method"] == "bmpq"
