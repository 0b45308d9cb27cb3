"""Pickles that torch's restricted reader is about to read, followed without building what they describe.

An object that a pickle refers to many times is stored once. Tuples of tuples take a few bytes and as many steps to hash as
there are leaves: 2**n after n steps of ``t = (t, t)``.
"""

import os
import pickletools
from dataclasses import dataclass
from typing import Any, BinaryIO

_SPARE = 100_000
_REPEATS = 4
"""Repeated values for each value that is there; a checkpoint of ours refers to each decision at most twice."""
_LARGEST_KEY = 1 << 63
"""Larger numbers can be chosen so that all have the same hash."""
_LEGACY_PICKLES = 5
"""Of a file of torch before 1.6: a mark, the version, the machine, the content, the names of the storages."""
_CONSTANTS = frozenset(
    "NONE NEWFALSE NEWTRUE BININT BININT1 BININT2 BINFLOAT BINUNICODE SHORT_BINSTRING GLOBAL".split()
)
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class PickleError(ValueError):
    """A pickle that takes far more steps to read than it has bytes, or that is not one."""


@dataclass(slots=True, eq=False)
class _Value:
    size: int = 1
    """With all that it holds, as often as it holds it."""
    is_key: bool = False
    """Whether a dictionary of an honest file may have it as a key."""
    is_list: bool = False
    is_odd: bool = False
    """Whether it is, or as a list holds, what can be hashed and is not plain: a tuple or a large number."""
    lists_odd: bool = False
    """Whether a tuple, the arguments of a call, holds such a list, of which the call could make a dictionary or a set."""
    is_shared: bool = False


_CONSTANT = _Value(is_key=True)


def check_pickles(file: BinaryIO, most_bytes: int) -> None:
    """``PickleError`` for pickles, one after another as old files have them, that no honest program writes."""
    size, start = file.seek(0, os.SEEK_END), 0
    for _ in range(_LEGACY_PICKLES):
        file.seek(start)
        if start == size or not _Follower().follow(file):
            return
        if file.tell() - start > most_bytes:
            raise PickleError("it has far more structure than tensors")
        start = file.tell()


class _Follower:
    """The stack and the memo of a reader, with sizes for values."""

    def __init__(self) -> None:
        self._stack: list[_Value] = []
        self._marks: list[list[_Value]] = []
        self._memo: dict[int, _Value] = {}
        self._steps = self._repeated = 0

    def follow(self, file: BinaryIO) -> bool:
        """Whether it was read to its end; torch stops, and says so, where it meets what it does not know."""
        try:
            for opcode, argument, _ in pickletools.genops(file):
                self._steps += 1
                if opcode.name != "PROTO" and opcode.name != "STOP" and not self._step(opcode.name, argument):
                    return False
        except PickleError:
            raise
        except (ValueError, IndexError, KeyError) as error:
            raise PickleError("it is damaged, or not a file of torch's") from error
        return True

    def _step(self, name: str, argument: Any) -> bool:
        if name in _CONSTANTS:
            self._stack.append(_CONSTANT)
        elif name == "LONG1":
            is_small = -_LARGEST_KEY <= argument < _LARGEST_KEY
            self._stack.append(_Value(is_key=is_small, is_odd=not is_small))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self._stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self._repeat(self._memo[argument])
        elif name == "MARK":
            self._marks.append(self._stack)
            self._stack = []
        else:
            return self._build(name)
        return True

    def _build(self, name: str) -> bool:
        if name in ("EMPTY_TUPLE", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET"):
            self._stack.append(_Value(is_list=name == "EMPTY_LIST", is_odd=name == "EMPTY_TUPLE"))
        elif name in _TUPLES or name == "TUPLE":
            values = self._pop(_TUPLES[name]) if name in _TUPLES else self._to_mark()
            self._stack.append(_tuple(values))
        elif name in ("APPEND", "APPENDS"):
            self._extend(self._pop(1) if name == "APPEND" else self._to_mark())
        elif name in ("SETITEM", "SETITEMS"):
            self._set(self._pop(2) if name == "SETITEM" else self._to_mark())
        elif name == "BUILD":
            self._extend(self._pop(1))
        elif name == "BINPERSID":
            self._stack.append(_Value(size=self._pop(1)[0].size))
        elif name in ("REDUCE", "NEWOBJ"):
            self._call(*self._pop(2))
        else:
            return False
        return True

    def _repeat(self, value: _Value) -> None:
        if value is not _CONSTANT:
            value.is_shared = True
            self._repeated += value.size
            if self._repeated > _SPARE + _REPEATS * self._steps:
                raise PickleError("it repeats values far more often than it has values")
        self._stack.append(value)

    def _pop(self, count: int) -> list[_Value]:
        values = self._stack[-count:]
        if len(values) < count:
            raise IndexError(count)
        del self._stack[-count:]
        return values

    def _to_mark(self) -> list[_Value]:
        values, self._stack = self._stack, self._marks.pop()
        return values

    def _extend(self, values: list[_Value]) -> None:
        holder = self._stack[-1]
        if holder.is_shared:  # or sizes would be wrong
            raise PickleError("a value in it refers to itself")
        if holder is _CONSTANT:
            raise ValueError(holder)
        holder.size += sum(value.size for value in values)
        holder.is_odd |= holder.is_list and any(value.is_odd for value in values)

    def _set(self, values: list[_Value]) -> None:
        if not all(key.is_key for key in values[::2]):
            raise PickleError("a dictionary in it has other keys than texts and numbers")
        self._extend(values)

    def _call(self, _: _Value, arguments: _Value) -> None:
        if arguments.lists_odd:
            raise PickleError("a dictionary in it has other keys than texts and numbers")
        self._stack.append(_Value(size=1 + arguments.size))


def _tuple(values: list[_Value]) -> _Value:
    size = 1 + sum(value.size for value in values)
    return _Value(size=size, is_odd=True, lists_odd=any(value.is_list and value.is_odd for value in values))
