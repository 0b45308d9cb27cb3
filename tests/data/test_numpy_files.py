"""Arrays that others wrote: read as numpy reads them, or refused before any room is made for them."""

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwbmpq.data.numpy_files import open_arrays, read_array
from hwbmpq.errors import HwbmpqError

HEADER = "{{'descr': {}, 'fortran_order': False, 'shape': {}, }}\n"


def array(header: str, body: bytes = b"", version: bytes = b"\1\0") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header.encode() + body


BAD = {
    "huge": (array(HEADER.format("'|u1'", "(4, 100000, 100000, 3)")), "takes 1.2e.11 bytes, not 0"),
    "impossible": (array(HEADER.format("'|u1'", f"({10**30},)")), "takes 1e.30 bytes"),
    "negative": (array(HEADER.format("'|u1'", "(-5, -5)"), bytes(25)), "shape"),
    "short": (array(HEADER.format("'<i8'", "(4,)"), bytes(31)), "takes 32 bytes, not 31"),
    "long": (array(HEADER.format("'<i8'", "(4,)"), bytes(33)), "takes 32 bytes, not 33"),
    "brackets": (array("{'descr': (((((\n"), "cannot be read"),
    "quotes": (array("'''\n"), "cannot be read"),
    "depth": (array("(" * 5000 + "\n"), "cannot be read"),
    "keys": (array("{'descr': '|u1'}\n"), "keys"),
    "type": (array(HEADER.format("'|x9'", "(1,)")), "descr"),
    "shape": (array(HEADER.format("'|u1'", "'abc'")), "shape"),
    "objects": (array(HEADER.format("'|O'", "(1,)"), b"cos\nsystem\n"), "could run any code"),
    "version": (array(HEADER.format("'|u1'", "(1,)"), b"x", version=b"\x09\0"), "is not known"),
    "no array": (b"hello", "cannot be read"),
    "empty": (b"", "cannot be read"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_a_bad_array_is_one_sentence(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", content)
    tracemalloc.start()
    with pytest.raises(HwbmpqError, match=message) as single:
        read_array(tmp_path / "a.npy")
    with pytest.raises(HwbmpqError, match=message) as packed, open_arrays(tmp_path / "a.npz") as arrays:
        arrays["x"]
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()
    for raised, name in ((single, "a.npy"), (packed, "a.npz")):
        assert str(raised.value).startswith(f"{tmp_path / name}: cannot be read as")
        assert "\n" not in str(raised.value)


def test_an_archive_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    header = HEADER.format("'|u1'", f"({100 << 20},)")
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", array(header, bytes(100 << 20)))
    with pytest.raises(HwbmpqError, match="compressed"), open_arrays(tmp_path / "a.npz") as arrays:
        arrays["x"]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_numpys(save: Any, order: Any, tmp_path: Path) -> None:
    given = {
        "bytes": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        "floats": np.asarray(np.arange(6.0).reshape(2, 3), order=order),
        "one": np.array(5),
        "none": np.zeros((0, 3)),
        "big": np.arange(3, dtype=">i4"),
    }
    save(tmp_path / "a.npz", **given)
    with open_arrays(tmp_path / "a.npz") as found:
        assert set(found) == set(given)
        assert len(found) == 5
        for name, value in given.items():
            np.testing.assert_array_equal(found[name], value, strict=True)
    np.save(tmp_path / "a.npy", given["floats"])
    np.testing.assert_array_equal(read_array(tmp_path / "a.npy"), given["floats"], strict=True)


def test_a_long_header_of_the_second_version_is_read(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.arange(3), version=(2, 0))
    (tmp_path / "a.npy").write_bytes(file.getvalue())
    assert read_array(tmp_path / "a.npy").tolist() == [0, 1, 2]
