"""A disk that is read-only, or becomes so under a run, as kernels make it after an error."""

from collections.abc import Callable

import pytest
from disks import SmallDisk
from faults import ROOMY, Trial
from runs import assert_clear_error, assert_finished

pytestmark = pytest.mark.usefixtures("_mounts")


def test_a_read_only_place_is_found_before_training(trial: Callable[[int], Trial]) -> None:
    at_hand = trial(0)
    with SmallDisk(at_hand.folder / "disk", ROOMY) as disk:
        disk.make_read_only()
        ended = at_hand.begin(run="disk/run")
        assert_clear_error(
            ended, "disk/run: cannot be written to: Read-only", "try: choose another --run-dir"
        )


@pytest.mark.parametrize(("event", "file"), [(4, "config.yaml"), (21, "checkpoint.pt")])
def test_a_disk_that_becomes_read_only_is_an_error_that_says_so(
    event: int, file: str, trial: Callable[[int], Trial]
) -> None:
    at_hand = trial(0)
    with SmallDisk(at_hand.folder / "disk", ROOMY) as disk:
        ended = at_hand.begin(run="disk/run", kind="read_only_at_event", folder=str(disk.path), event=event)
        assert_clear_error(ended, f"{file} cannot be written: Read-only", "try: make the folder writable")
        disk.make_writable()
        at_hand.finish("disk/run")


def test_a_finished_run_can_be_read_and_not_overwritten_where_nothing_can_be_written(
    trial: Callable[[int], Trial],
) -> None:
    at_hand = trial(0)
    with SmallDisk(at_hand.folder / "disk", ROOMY) as disk:
        assert_finished(at_hand.begin(run="disk/run"))
        disk.make_read_only()
        words = [["evaluate", "disk/run", "--trust"], ["report", "disk/run"]]
        assert at_hand.server.run(*words, folder=at_hand.folder).out.count("exit code 0") == 2
        assert_clear_error(at_hand.begin("--overwrite", run="disk/run"), "Read-only", "try: ")
        for form, file in {"onnx": "model.onnx", "packed": "model.safetensors"}.items():
            ended = at_hand.server.run(
                ["export", "disk/run", "--trust", "--format", form], folder=at_hand.folder
            )
            assert_clear_error(ended, f"{file} cannot be written: Read-only", "try: make the folder writable")
        disk.make_writable()
