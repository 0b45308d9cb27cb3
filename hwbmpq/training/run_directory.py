"""The folder of a run; every file in it is written atomically."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from hwbmpq.errors import HwbmpqError
from hwbmpq.io import UNFINISHED, atomic_write, disk_hint, read_regular
from hwbmpq.report.run_files import (
    ALLOCATION,
    BEST,
    CONFIG,
    FACTS,
    HISTORY,
    PACKED,
    PAGE,
    PROBES,
)
from hwbmpq.report.run_files import CHECKPOINT as LAST
from hwbmpq.report.run_files import PREVIOUS_CHECKPOINT as PREVIOUS
from hwbmpq.training.checkpoint import CheckpointError, is_good, packed, unpacked
from hwbmpq.training.settings import RunSettings, read_settings, resolve_settings, settings_yaml
from hwbmpq.training.trust import check_trust

ONNX_FILES = {
    "qdq": "model.onnx",
    "qdq8": "model.older.onnx",
    "int8": "model.int8.onnx",
    "int8-vnni": "model.int8-vnni.onnx",
    "qonnx": "model.qonnx.onnx",
}
"""By the kind of graph."""
_EXPORTS = (PACKED, *ONNX_FILES.values())


def of_best(name: str) -> str:
    """``model.onnx`` of the best epoch's network instead of the last one's: ``best.onnx``."""
    return name.replace("model.", "best.", 1)


_OURS = (
    *(CONFIG, FACTS, ALLOCATION, HISTORY, LAST, PREVIOUS, BEST, PAGE, PROBES),
    *_EXPORTS,
    *map(of_best, _EXPORTS),
)
PROBE = "probe"
"""The folder of a trained probe of accuracy, until it is measured."""
_FOLDERS = ("baseline", PROBE, "tensorboard")
_MOST_JSON_BYTES = 1 << 25


class RunDirectory:
    """Reads and writes the files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._last_is_good: bool | None = None
        """Whether the last checkpoint is undamaged; None if that was not checked yet."""

    def check_free(self, *, overwrite: bool = False) -> "RunDirectory":
        """An error if the folder holds anything; with ``overwrite``, anything but a run."""
        if self.path.exists() and not self.path.is_dir():
            raise HwbmpqError(f"{self.path} is a file, not a folder for a run")
        if self._entries():
            self._refuse(overwrite)
        return self

    def create(self, *, overwrite: bool = False) -> "RunDirectory":
        """Make the folder. One that holds a run is refused, or emptied of it with ``overwrite``."""
        self.check_free(overwrite=overwrite)
        try:
            self._clear()
            self.path.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(self.path / UNFINISHED):  # a link would lead elsewhere
                (self.path / UNFINISHED).unlink()
            (self.path / UNFINISHED).touch(exist_ok=False)
            (self.path / UNFINISHED).unlink()
        except OSError as error:
            raise HwbmpqError(
                f"{self.path}: cannot be written to: {error.strerror or error}",
                hint="choose another --run-dir",
            ) from error
        return self

    def _entries(self) -> list[Path]:
        """What is in the folder, but for files that were never finished."""
        if not self.path.is_dir():
            return []
        return [entry for entry in self.path.iterdir() if not entry.name.endswith(UNFINISHED)]

    def _refuse(self, overwrite: bool) -> None:
        is_run = (self.path / CONFIG).exists()
        if not overwrite:
            raise HwbmpqError(
                f"{self.path} holds {'a run' if is_run else 'files'} already",
                hint=f"--resume {quote(str(self.path))} continues it, --overwrite starts it over, --run-dir names another folder"
                if is_run
                else "name another folder with --run-dir",
            )
        if not is_run:
            foreign = sorted(entry.name for entry in self._entries())
            raise HwbmpqError(
                f"{self.path} is not a run of hwbmpq, it holds {', '.join(foreign[:3])}: nothing is overwritten",
                hint="name another folder with --run-dir",
            )

    def _clear(self) -> None:
        """Remove what belongs to a run, and nothing else."""
        found = list(self.path.iterdir()) if self.path.is_dir() else []
        # The settings last: what is left if this is interrupted is still a run, which can be overwritten again.
        for entry in sorted(found, key=lambda entry: entry.name == CONFIG):
            is_ours = entry.name.removesuffix(UNFINISHED) in _OURS
            if (is_ours and entry.is_file()) or (entry.is_symlink() and (is_ours or entry.name in _FOLDERS)):
                entry.unlink()
            elif entry.name in _FOLDERS and entry.is_dir():
                shutil.rmtree(entry)

    def open(self) -> "RunDirectory":
        """An existing run."""
        if not (self.path / CONFIG).is_file():
            what = "is not a run of hwbmpq: it has no config.yaml" if self.path.exists() else "does not exist"
            raise HwbmpqError(f"{self.path} {what}", hint="give the folder that hwbmpq compress wrote")
        return self

    def subfolder(self, name: str) -> Path:
        """Where a part of the run is written to, as ``baseline``: in the run's own folder, not where a link leads."""
        path = self.path / name
        if path.is_symlink():
            raise HwbmpqError(
                f"{path} is a link to {os.path.realpath(path)}: nothing is written outside of the run's folder",
                hint="remove the link",
            )
        return path

    def probe_folder(self) -> "RunDirectory":
        """Where a trained probe of accuracy keeps its checkpoints."""
        path = self.subfolder(PROBE)
        path.mkdir(exist_ok=True)
        return RunDirectory(path)

    def forget_probe(self) -> None:
        """Remove the folder of a trained probe that has been measured."""
        shutil.rmtree(self.subfolder(PROBE), ignore_errors=True)

    @property
    def packed_file(self) -> Path:
        """Where the network is, once the run has ended."""
        return self.path / PACKED

    def onnx_file(self, kind: str) -> Path:
        """Where an exported graph is, if there is one."""
        return self.path / ONNX_FILES[kind]

    def forget_exports(self) -> None:
        """Remove the files that a network was exported to: it is about to change."""
        exports = [self.path / name for export in _EXPORTS for name in (export, of_best(export))]
        for path in filter(os.path.lexists, exports):
            try:
                path.unlink()
            except OSError as error:
                raise HwbmpqError(
                    f"{path}, of an earlier state of the run, cannot be removed: {error.strerror or error}",
                    hint=disk_hint(error),
                ) from error

    # settings

    def save_settings(self, settings: RunSettings, facts: Mapping[str, Any]) -> None:
        header = "".join(f"# {name}: {value}\n" for name, value in facts.items())
        self._write(CONFIG, settings_yaml(settings, header).encode())

    def load_settings(self, *, trust: bool = False, given: Mapping[str, Any] | None = None) -> RunSettings:
        """The settings of the run; ``given`` ones, which its user has typed, stand in place of its own.

        Settings may name Python files (``file:net.py:make_net``), which run when the network is built. Somebody else may
        have written them: an ``UntrustedCodeError``, unless ``trust`` says that this code may run, or it is ``given``.
        """
        own, given = resolve_settings(read_settings(self.path / CONFIG)), given or {}
        if not trust:
            used = {name: value for name, value in own.model_dump().items() if name not in given}
            check_trust(used, self.path / CONFIG)
        return own.model_copy(update=dict(given))

    # what people and programs read

    @property
    def page(self) -> Path:
        """Where the report is, once the run has ended."""
        return self.path / PAGE

    @property
    def has_facts(self) -> bool:
        return (self.path / FACTS).is_file()

    def save_facts(self, content: Mapping[str, Any]) -> None:
        self._write(FACTS, (json.dumps(content, allow_nan=False) + "\n").encode())

    def save_allocation(self, content: Mapping[str, Any]) -> None:
        self._write(ALLOCATION, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())

    def load_allocation(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(read_regular(self.path / ALLOCATION, _MOST_JSON_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            raise HwbmpqError(f"{self.path / ALLOCATION}: cannot be read: {error}") from error
        return content

    def save_probes(self, content: bytes) -> None:
        self._write(PROBES, content)

    @property
    def has_probes(self) -> bool:
        return (self.path / PROBES).is_file()

    def load_probes(self) -> bytes | None:
        """None if the run has made none yet."""
        return read_regular(self.path / PROBES, _MOST_JSON_BYTES) if self.has_probes else None

    def save_history(self, records: Iterable[Mapping[str, Any]]) -> None:
        lines = (json.dumps(record, allow_nan=False) + "\n" for record in records)
        self._write(HISTORY, "".join(lines).encode())

    # checkpoints

    def save_checkpoint(self, content: Mapping[str, Any]) -> None:
        """Save the state of a run; the one before is kept beside it."""
        if self._last_is_good is None:
            self._last_is_good = is_good(self.path / LAST)
        # A damaged checkpoint must not take the place of a good one.
        keep_old = self.path / PREVIOUS if self._last_is_good else None
        self._last_is_good = None
        self._write(LAST, packed(content), keep_old=keep_old)
        self._last_is_good = True

    def save_best(self, content: Mapping[str, Any]) -> None:
        self._write(BEST, packed(content))

    @property
    def has_checkpoint(self) -> bool:
        return any((self.path / name).exists() for name in (LAST, PREVIOUS))

    def load_checkpoint(self, *, best: bool = False) -> tuple[dict[str, Any], str]:
        """The newest undamaged state, and what was wrong with a newer one ("" if nothing)."""
        problems: list[str] = []
        for name in [BEST] if best else [LAST, PREVIOUS]:
            path = self.path / name
            if not path.exists():
                problems.append(f"{path} is missing")
                continue
            try:
                return unpacked(path), "; ".join(problems)
            except CheckpointError as error:
                problems.append(str(error))
        if best and self.has_checkpoint and not (self.path / BEST).exists():
            raise CheckpointError(
                f"{self.path} has no best epoch: none has ended since its widths were decided",
                hint=f"leave out --best, or go on with it: hwbmpq compress --resume {quote(str(self.path))}",
            )
        if best or self.has_checkpoint:
            raise CheckpointError(
                "; ".join(problems), hint="there is no older state that is intact: start the run over"
            )
        raise CheckpointError(
            f"{self.path} has no checkpoint yet",
            hint=f"hwbmpq compress --resume {quote(str(self.path))} goes on with it",
        )

    def _write(self, name: str, data: bytes, *, keep_old: Path | None = None) -> None:
        try:
            with atomic_write(self.path / name, keep_old=keep_old) as file:
                file.write(data)
        except HwbmpqError as error:
            is_run = (self.path / CONFIG).exists()
            then = f"continue with --resume {quote(str(self.path))}" if is_run else "start the run again"
            raise HwbmpqError(str(error), hint=f"{error.hint or 'check the folder'}, then {then}") from error
