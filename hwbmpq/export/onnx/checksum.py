"""A checksum inside an ONNX file, which shows on loading whether the file has changed since it was written.

ONNX Runtime usually notices a damaged graph, but not a flipped bit in a weight.
"""

from hwbmpq.errors import HwbmpqError
from hwbmpq.io import BLANK_CHECKSUM, CHECKSUM_DIGITS, with_checksum

KEY = "hwbmpq.checksum"
"""Key of the last metadata entry."""
BLANK = BLANK_CHECKSUM.decode()
"""Placeholder while the checksum is computed."""
_MARK = KEY.encode() + bytes([0x12, CHECKSUM_DIGITS])
"""In protocol buffers: the key, then the tag and length of the value."""


def add_checksum(content: bytes) -> bytes:
    """The file with its checksum in place of the blank one."""
    return with_checksum(content, content.rindex(_MARK + BLANK_CHECKSUM) + len(_MARK))


def verify_checksum(content: bytes, what: str) -> bool:
    """Whether the file has a checksum; an error if it has one that is not its own."""
    place = content.rfind(_MARK)
    if place < 0:
        return False
    if with_checksum(content, place + len(_MARK)) != content:
        raise HwbmpqError(f"{what} is damaged, or was changed: its checksum is wrong", hint="export it again")
    return True
