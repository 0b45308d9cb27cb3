"""The archive of a ``.pt2`` file: a copy with the network alone, which torch can be given to read."""

import io
import json
import re
import zipfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from hwbmpq.io import open_regular
from hwbmpq.models.archives import check_archive
from hwbmpq.models.program_graph import UnsafeProgramError, clean_graph

_MOST_BYTES = 1 << 33
_MOST_JSON_BYTES = 1 << 25
_MOST_VALUES = 500_000
_GRAPH = "models/model.json"
_TABLES = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_PLAIN = re.compile(
    r"archive_format|archive_version|version|byteorder|\.data/(version|serialization_id)"
    r"|data/weights/weight_\d+|data/constants/tensor_\d+"
)
_PICKLED = re.compile(r"data/(weights|constants|sample_inputs)/model\.pt")
"""Tensors as ``torch.save`` writes them, read without running code."""
_DROPPED = re.compile(r"extra/.*", re.DOTALL)
_OBJECTS = re.compile(r".*(custom_obj|opaque_obj).*", re.DOTALL)


def read_program(path: Path) -> io.BytesIO:
    """What torch needs of a file that it saved. ``UnsafeProgramError`` if there is anything else in it.

    Takes about twice the memory of the file.
    """
    copy = io.BytesIO()
    with open_regular(path, _MOST_BYTES) as file:
        check_archive(file)
        with zipfile.ZipFile(file) as old, zipfile.ZipFile(copy, "w") as new:
            sizes = {name: old.getinfo(full).file_size for full, name in _names(old)}
            for full, name in _names(old):
                if not _DROPPED.fullmatch(name):
                    new.writestr(full, _content(old.read(full), name, sizes))
    copy.seek(0)
    return copy


def _names(archive: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    """The name of each record, and the same without the folder that all are in."""
    for full in archive.namelist():
        yield full, full.partition("/")[2]


def _content(data: bytes, name: str, sizes: dict[str, int]) -> bytes:
    if name == _GRAPH:
        return json.dumps(clean_graph(_parse(data))).encode()
    if name in _TABLES:
        _check_table(_parse(data), name.rpartition("/")[0], sizes)
        return data
    if _PICKLED.fullmatch(name):
        check_archive(io.BytesIO(data))
        return data
    if _PLAIN.fullmatch(name):
        return data
    if _OBJECTS.fullmatch(name):
        raise UnsafeProgramError(
            f"it carries pickled objects ({name:.80}), which could run any code when read"
        )
    raise UnsafeProgramError(f"it carries {name!r:.80}, which is not part of a network")


def _parse(data: bytes) -> Any:
    if len(data) > _MOST_JSON_BYTES or sum(map(data.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise UnsafeProgramError("its graph is too large to be a network's")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnsafeProgramError(f"its graph cannot be read: {str(error)[:100]}") from error


def _check_table(table: Any, folder: str, sizes: dict[str, int]) -> None:
    """Every weight is a record of plain numbers, as large as its shape says."""
    entries = table.get("config") if isinstance(table, dict) else None
    for entry in entries.values() if isinstance(entries, dict) else [None]:
        clean_graph(entry)  # no names but plain ones
        if not isinstance(entry, dict) or entry.get("use_pickle") is not False:
            raise UnsafeProgramError("it carries pickled objects, which could run any code when read")
        if not _fits(entry.get("tensor_meta"), sizes.get(f"{folder}/{entry.get('path_name')}")):
            raise UnsafeProgramError(f"it does not hold {str(entry.get('path_name'))!r:.80} as it says")


def _fits(meta: Any, record_bytes: int | None) -> bool:
    lengths = [
        size.get("as_int") if isinstance(size, dict) else None for size in (meta or {}).get("sizes", [None])
    ]
    known = [size for size in lengths if isinstance(size, int) and size >= 0]
    return record_bytes is not None and known == lengths and prod(known) <= record_bytes
