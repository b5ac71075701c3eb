"""A block of memory that other nodes can write to, and its numpy array.

Owns: the life of a block between rwapi_alloc and rwapi_free.
Invariant: while the memory is freed, no array over it exists. Every array, slice and memoryview refers, through a chain
of `base` references, to the ctypes object `_memory`; `free` releases the block's own references and frees only if
`_memory` is then gone.
"""

from __future__ import annotations

import ctypes
import gc
import operator
import weakref
from typing import Any, Callable


def _memory_at(address: int, size: int) -> ctypes.Array:
    # A class statement's instances have weak references; those of `c_ubyte * size` need not.
    kind = type("Memory", (ctypes.Array,), {"_type_": ctypes.c_ubyte, "_length_": size})
    return kind.from_address(address)


class Block:
    """Memory of this node that other nodes can write to. `rwapi.alloc` makes it.

    The memory belongs to the job, not to this object: a Block that is garbage-collected stays allocated until
    `finalize`. Other nodes hold its network address, and their writes must not fail because a local variable is gone.
    """

    def __init__(self, address: int, net: int, shape: tuple, dtype: Any, release: Callable[[int], None]):
        self._address = address
        self._net = net
        self._shape = shape
        self._dtype = dtype
        self._release = release
        self._memory: ctypes.Array | None = _memory_at(address, dtype.itemsize * _product(shape))
        self._array: Any = None

    def _check(self) -> ctypes.Array:
        if self._memory is None:
            raise ValueError("the block is freed")
        return self._memory

    @property
    def array(self) -> Any:
        """The memory as a numpy array of the shape and type given to `alloc`. It is no copy."""
        memory = self._check()
        if self._array is None:
            import numpy

            self._array = numpy.ndarray(self._shape, self._dtype, buffer=memory)
        return self._array

    @property
    def net(self) -> int:
        """The network address of the first byte: valid in the whole job. `net + n` is n bytes further on."""
        self._check()
        return self._net

    @property
    def nbytes(self) -> int:
        """The number of bytes of the block."""
        return ctypes.sizeof(self._check())

    def address_of(self, index: int | tuple[int, ...]) -> int:
        """The network address of an element.

        `index` is an int or a tuple of ints, as in `array[index]`; negative ones count from the end. Fewer indices than
        dimensions give the address of the first element of that row or plane.
        """
        self._check()
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) > len(self._shape):
            raise IndexError(f"{len(indices)} indices for {len(self._shape)} dimensions")
        offset = 0
        stride = self._dtype.itemsize * _product(self._shape)
        for position, length in zip(indices, self._shape):
            position = operator.index(position)
            if not -length <= position < length:
                raise IndexError(f"index {position} is outside of a dimension of {length}")
            stride //= length
            offset += position % length * stride
        return self._net + offset

    def free(self) -> None:
        """Returns the memory.

        Raises BufferError while an array, slice or memoryview over the memory exists outside of this object: to use one
        after the memory is gone would crash the process. Delete them (`del`), then retry. After `free` every attribute
        raises ValueError. Writes of other nodes to a freed block fail there with EFAULT.
        """
        alive = weakref.ref(self._check())
        self._array = None
        self._memory = None
        if alive() is not None:
            gc.collect()  # an array in a reference cycle is garbage, but still there
        memory = alive()
        if memory is not None:
            self._memory = memory
            raise BufferError("arrays over the block still exist: delete them before free")
        try:
            self._release(self._address)
        except BaseException:
            self._memory = _memory_at(self._address, self._dtype.itemsize * _product(self._shape))
            raise

    def __repr__(self) -> str:
        if self._memory is None:
            return "<rwapi.Block, freed>"
        return f"<rwapi.Block {self._shape} {self._dtype} at {self._net:#x}>"


def _product(shape: tuple) -> int:
    total = 1
    for length in shape:
        total *= length
    return total
