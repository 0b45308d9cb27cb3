"""Public names of 0.1.0 still resolve; those that changed say what they are called now."""

import importlib
import json
import sys
import warnings
from pathlib import Path

import pytest

import hwbmpq
from hwbmpq.deprecated import MOVED_MODULES

NAMES = json.loads((Path(__file__).parent / "v0_1_0" / "public_names.json").read_text())


@pytest.mark.parametrize("module", NAMES)
def test_every_public_name_resolves(module: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = importlib.import_module(module)
        assert [name for name in NAMES[module] if not hasattr(found, name)] == []


@pytest.mark.parametrize("module", MOVED_MODULES)
def test_a_module_that_moved_is_imported_with_a_warning(module: str) -> None:
    sys.modules.pop(module, None)
    with pytest.warns(DeprecationWarning, match=f"{module} is now {MOVED_MODULES[module]}"):
        assert importlib.import_module(module) is importlib.import_module(MOVED_MODULES[module])


def test_a_renamed_name_says_its_new_one() -> None:
    with pytest.warns(
        DeprecationWarning, match=r"hwbmpq.pipeline.ask is now hwbmpq.pipeline.build_search_space"
    ):
        assert hwbmpq.pipeline.ask is hwbmpq.pipeline.build_search_space
    with pytest.warns(DeprecationWarning, match="FIRST_LAST_PRECISION"):
        assert hwbmpq.quant.END_PRECISION == hwbmpq.quant.FIRST_LAST_PRECISION
