"""A checksum inside an ONNX file, which shows on loading whether the file has changed since it was written.

ONNX Runtime notices a damaged graph, mostly, but no flipped bit of a weight.
"""

from hashlib import blake2b

from hwbmpq.errors import HwbmpqError

KEY = "hwbmpq.checksum"
"""Of the metadata; the entry is the last one."""
_DIGITS = 64
BLANK = "0" * _DIGITS
"""Stands in the place of the checksum while it is computed."""
_MARK = KEY.encode() + bytes([0x12, _DIGITS])
"""In protocol buffers: the key, then a second field of so many bytes."""


def add_checksum(content: bytes) -> bytes:
    """The file with its checksum in the place of the blank one."""
    start = content.rindex(_MARK + BLANK.encode()) + len(_MARK)
    return content[:start] + _checksum(content) + content[start + _DIGITS :]


def verify_checksum(content: bytes, what: str) -> bool:
    """Whether the file has a checksum; an error if it has one that is not its own."""
    place = content.rfind(_MARK)
    if place < 0:
        return False
    start = place + len(_MARK)
    blank = content[:start] + BLANK.encode() + content[start + _DIGITS :]
    if content[start : start + _DIGITS] != _checksum(blank):
        raise HwbmpqError(f"{what} is damaged, or was changed: its checksum is wrong", hint="export it again")
    return True


def _checksum(content: bytes) -> bytes:
    return blake2b(content, digest_size=_DIGITS // 2).hexdigest().encode()
