"""The paper's compression ratios, by its formula and our layers."""

from pathlib import Path

import paper_ratios
import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "row", paper_ratios.TABLE_1, ids=lambda row: f"{row.dataset}-{row.network}-{row.papers_ratio}"
)
def test_every_row_is_within_3_percent_or_so(row: object) -> None:
    assert paper_ratios.ratio(row) == pytest.approx(row.papers_ratio, rel=0.032)  # type: ignore[attr-defined]


def test_vgg16_on_cifar10_exactly() -> None:
    ratios = [paper_ratios.ratio(row) for row in paper_ratios.TABLE_1[:2]]
    assert ratios == pytest.approx([10.52, 15.47], abs=0.005)


def test_the_documented_table_is_what_the_script_prints() -> None:
    assert paper_ratios.markdown() in (ROOT / "docs" / "results.md").read_text()
