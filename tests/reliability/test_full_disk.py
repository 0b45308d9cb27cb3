"""A disk that is full, for real: the run says so, loses nothing, and goes on once there is room."""

from collections.abc import Callable

import pytest
from disks import SmallDisk
from faults import ROOMY, Trial
from runs import assert_clear_error

pytestmark = pytest.mark.usefixtures("_mounts")


@pytest.mark.parametrize(
    ("kibibytes", "file"), [(4, "facts.json"), (60, "checkpoint.pt"), (240, "report.html")]
)
def test_what_does_not_fit_is_named_and_the_run_goes_on_later(
    kibibytes: int, file: str, trial: Callable[[int], Trial]
) -> None:
    at_hand = trial(0)
    with SmallDisk(at_hand.folder / "disk", kibibytes) as disk:
        ended = at_hand.begin(run="disk/run")
        assert_clear_error(ended, f"disk/run/{file} cannot be written: No space left", "try: make room")
        assert not list((disk.path / "run").glob("*.unfinished"))
        disk.resize(ROOMY)
        at_hand.finish("disk/run")


def test_without_room_for_its_settings_a_run_is_begun_again_not_resumed(
    trial: Callable[[int], Trial],
) -> None:
    at_hand = trial(0)
    with SmallDisk(at_hand.folder / "disk", 4) as disk:
        (disk.path / "filler").write_bytes(bytes(4096))
        ended = at_hand.begin(run="disk/run")
        assert_clear_error(ended, "config.yaml cannot be written", "then start the run again")
        assert "--resume" not in ended.err
        disk.resize(ROOMY)
        at_hand.finish("disk/run")
