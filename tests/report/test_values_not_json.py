"""Inside one process values are passed on, not written, read back and worked out again."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hwbmpq.cli.main import main
from hwbmpq.costs import network
from hwbmpq.costs.table import CostTable
from hwbmpq.report import Plan, RunFacts, report_on_run
from hwbmpq.report.html import render_page

_WORDS = "--model hwbmpq:resnet8 --target mpic --data fake --train-images 48 --test-images 16 -q"


class Spy:
    """Counts calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        self._monkeypatch = monkeypatch

    def watch(self, owner: Any, name: str, key: Callable[..., str]) -> None:
        original = vars(owner)[name]
        is_method_of_class = isinstance(original, classmethod)
        function = original.__func__ if is_method_of_class else original

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls[key(*args)] += 1
            return function(*args, **kwargs)

        self._monkeypatch.setattr(owner, name, classmethod(counted) if is_method_of_class else counted)


@pytest.mark.parametrize("budget", ["memory=24KiB", "latency=80%"])
def test_a_run_works_everything_out_once(
    budget: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(monkeypatch)
    get_cost_model = network.get_cost_model

    def watched(name: str) -> SimpleNamespace:
        def tabulate(layers: Any, profile: Any, choices: Any) -> CostTable:
            spy.calls[f"tabulate {name} {choices}"] += 1
            return get_cost_model(name).tabulate(layers, profile, choices)

        return SimpleNamespace(tabulate=tabulate)

    monkeypatch.setattr(network, "get_cost_model", watched)
    spy.watch(RunFacts, "to_dict", lambda facts: "facts to JSON")
    spy.watch(CostTable, "to_dict", lambda table: f"{table.name} to JSON")
    spy.watch(Plan, "to_dict", lambda plan: "plan to JSON")
    for kind in (RunFacts, Plan, CostTable):
        spy.watch(kind, "from_dict", lambda cls, content: f"{cls.__name__} from JSON")
    folder = str(tmp_path / "run")
    command = ["compress", *_WORDS.split(), "--budget", budget, "--epochs", "2", "--run-dir", folder]
    assert main(command) == 0
    assert spy.calls["plan to JSON"] == spy.calls["facts to JSON"] == 1
    assert not [what for what in spy.calls if what.endswith("from JSON")]
    assert set(spy.calls.values()) == {1}


def test_the_page_is_the_one_that_the_files_make(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [*_WORDS.split(), "--budget", "memory=24KiB", "--epochs", "2", "--run-dir", str(folder)]
    assert main(["compress", *command]) == 0
    assert (folder / "report.html").read_text(encoding="utf-8") == render_page([report_on_run(folder)])
