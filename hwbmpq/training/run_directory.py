"""The folder of a run; every file in it is written atomically."""

import io
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from hwbmpq.errors import HwbmpqError
from hwbmpq.io import CHECKSUM_DIGITS, UNFINISHED, atomic_write, checksum, disk_hint
from hwbmpq.report.run_files import ALLOCATION, BEST, CONFIG, FACTS, HISTORY, PACKED, PAGE
from hwbmpq.report.run_files import CHECKPOINT as LAST
from hwbmpq.report.run_files import PREVIOUS_CHECKPOINT as PREVIOUS
from hwbmpq.training.settings import RunSettings, read_settings, resolve_settings, settings_yaml

FORMAT = "hwbmpq-checkpoint/1"
ONNX_FILES = {
    "qdq": "model.onnx",
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
    *(CONFIG, FACTS, ALLOCATION, HISTORY, LAST, PREVIOUS, BEST, PAGE),
    *_EXPORTS,
    *map(of_best, _EXPORTS),
)
_FOLDERS = ("baseline", "tensorboard")


class CheckpointError(HwbmpqError):
    """A checkpoint that cannot be used."""


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
            (self.path / UNFINISHED).touch()
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
                hint=f"--resume {self.path} continues it, --overwrite starts it over, --run-dir names another folder"
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
            if entry.is_file() and entry.name.removesuffix(UNFINISHED) in _OURS:
                entry.unlink()
            elif entry.name in _FOLDERS and entry.is_dir():
                shutil.rmtree(entry)

    def open(self) -> "RunDirectory":
        """An existing run."""
        if not (self.path / CONFIG).is_file():
            what = "is not a run of hwbmpq: it has no config.yaml" if self.path.exists() else "does not exist"
            raise HwbmpqError(f"{self.path} {what}", hint="give the folder that hwbmpq compress wrote")
        return self

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
        for path in filter(Path.exists, exports):
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

    def load_settings(self) -> RunSettings:
        return resolve_settings(read_settings(self.path / CONFIG))

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
            content: dict[str, Any] = json.loads((self.path / ALLOCATION).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise HwbmpqError(f"{self.path / ALLOCATION}: cannot be read: {error}") from error
        return content

    def save_history(self, records: Iterable[Mapping[str, Any]]) -> None:
        lines = (json.dumps(record, allow_nan=False) + "\n" for record in records)
        self._write(HISTORY, "".join(lines).encode())

    # checkpoints

    def save_checkpoint(self, content: Mapping[str, Any]) -> None:
        """Save the state of a run; the one before is kept beside it."""
        if self._last_is_good is None:
            self._last_is_good = _is_good(self.path / LAST)
        # A damaged checkpoint must not take the place of a good one.
        keep_old = self.path / PREVIOUS if self._last_is_good else None
        self._last_is_good = None
        self._write(LAST, _packed(content), keep_old=keep_old)
        self._last_is_good = True

    def save_best(self, content: Mapping[str, Any]) -> None:
        self._write(BEST, _packed(content))

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
                return _unpacked(path), "; ".join(problems)
            except CheckpointError as error:
                problems.append(str(error))
        if best and self.has_checkpoint and not (self.path / BEST).exists():
            raise CheckpointError(
                f"{self.path} has no best epoch: none has ended since its widths were decided",
                hint=f"leave out --best, or go on with it: hwbmpq compress --resume {self.path}",
            )
        if best or self.has_checkpoint:
            raise CheckpointError(
                "; ".join(problems), hint="there is no older state that is intact: start the run over"
            )
        raise CheckpointError(
            f"{self.path} has no checkpoint yet",
            hint=f"hwbmpq compress --resume {self.path} goes on with it",
        )

    def _write(self, name: str, data: bytes, *, keep_old: Path | None = None) -> None:
        try:
            with atomic_write(self.path / name, keep_old=keep_old) as file:
                file.write(data)
        except HwbmpqError as error:
            is_run = (self.path / CONFIG).exists()
            then = f"continue with --resume {self.path}" if is_run else "start the run again"
            raise HwbmpqError(str(error), hint=f"{error.hint or 'check the folder'}, then {then}") from error


def _packed(content: Mapping[str, Any]) -> bytes:
    """A torch archive whose comment is the checksum of all of it.

    Torch's reader does not notice every flipped bit: some make it return uninitialised memory.
    """
    # In memory first: torch's own writer reports a full disk as an internal error.
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **_with_decisions_once(content)}, buffer)
    archive = buffer.getvalue()
    assert archive.endswith(_NO_COMMENT), "an archive of torch's has no comment"
    comment = _comment(archive)
    return archive[: -len(_NO_COMMENT)] + len(comment).to_bytes(2, "little") + comment


def _with_decisions_once(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same content; the epochs' records refer to the allocator's decisions, and pickle stores an object once."""
    history: list[Any] = content.get("allocator", {}).get("history", [])
    progress = content.get("progress", {})
    records = [
        {
            name: next((made for made in history if made == value), value) if name == "decision" else value
            for name, value in record.items()
        }
        for record in progress.get("records", ())
    ]
    return {**content, "progress": {**progress, "records": records}} if history and records else content


_NO_COMMENT = b"\0\0"  # a zip archive ends with the length of its comment, and the comment
_MARK = b"hwbmpq blake2b "
_COMMENT_BYTES = len(_MARK) + CHECKSUM_DIGITS


def _comment(archive: bytes) -> bytes:
    return _MARK + checksum(archive)


def _is_good(path: Path) -> bool:
    try:
        _checked(path)
    except CheckpointError:
        return False
    return True


def _unpacked(path: Path) -> dict[str, Any]:
    """Read a checkpoint without running any code from it."""
    archive = _checked(path)
    try:
        content: dict[str, Any] = torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True)
    except Exception as error:  # not written by hwbmpq; torch raises many types
        raise CheckpointError(f"{path} is not a checkpoint of hwbmpq ({type(error).__name__})") from error
    if content.get("format") != FORMAT:
        raise CheckpointError(f"{path} is of another version of hwbmpq ({content.get('format')})")
    return content


def _checked(path: Path) -> bytes:
    """The torch archive in a checkpoint, if its checksum is right."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    archive, comment = data[: -_COMMENT_BYTES - 2] + _NO_COMMENT, data[-_COMMENT_BYTES:]
    if not comment.startswith(_MARK):
        raise CheckpointError(f"{path} is cut short, or not a checkpoint of hwbmpq")
    if comment != _comment(archive):
        raise CheckpointError(f"{path} is damaged: its checksum is wrong")
    return archive
