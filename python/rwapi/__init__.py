"""RWAPI: small messages and one-sided writes between the nodes of a job, over Rerail.

A job has `size()` nodes with ranks from 0. There are two kinds of messages:

* `send` takes up to 16 bytes; the target gets them by `receive`.
* `write` copies memory of a block of this node into a block of another node, by their network addresses. The target
  makes no call for it. It sees the data when it receives a later message of the writer.

All calls but `init`, `finalize`, `wait` and `barrier` return at once. Every call makes progress.

    import rwapi

    with rwapi.job() as me:
        rwapi.send((me.rank + 1) % me.size, b"hello")
        while (message := rwapi.receive()) is None:
            rwapi.wait()
        node, data = message
"""

from __future__ import annotations

import ctypes
import errno
import operator
import os
import sys
import time
from contextlib import contextmanager
from typing import Any, Iterator, NamedTuple, Sequence

from ._block import Block
from ._errors import Again, NodeGone, RwapiError
from ._library import SMALL_SIZE, Small as _Small, load as _load

__all__ = [
    "Again",
    "Block",
    "Job",
    "NodeGone",
    "RwapiError",
    "SMALL_SIZE",
    "alloc",
    "barrier",
    "finalize",
    "init",
    "is_sent",
    "job",
    "rank",
    "receive",
    "send",
    "size",
    "wait",
    "write",
    "write_notify",
]

_library = _load()

# A wait is cut into pieces, so that Python's signal handlers (Ctrl-C) run between them.
_WAIT_MS_MAX = 500


class Job(NamedTuple):
    """What `job` yields: the rank of this node and the number of nodes."""

    rank: int
    size: int


def _sentence(error: int) -> str:
    text = _library.rwapi_error_string(error)
    return text.decode("utf-8", "replace") if text else os.strerror(error)


def _error(error: int, node: int | None = None) -> RwapiError:
    sentence = _sentence(error)
    if error in (errno.EAGAIN, errno.EWOULDBLOCK):
        return Again(error, sentence)
    if error == errno.EHOSTDOWN:
        return NodeGone(node, sentence)
    return RwapiError(error, sentence)


def _check(result: int, node: int | None = None) -> int:
    if result < 0:
        raise _error(ctypes.get_errno(), node)
    return result


def _within(value: int, bits: int, signed: bool = False) -> int:
    """`value` as an int. ctypes cuts a number that does not fit without an error, so this refuses it."""
    value = operator.index(value)
    low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)
    if not low <= value < high:
        raise _error(errno.EINVAL)
    return value


def _pack(data: Any) -> _Small:
    raw = bytes(memoryview(data))
    if len(raw) > SMALL_SIZE:
        raise ValueError(f"a small message has at most {SMALL_SIZE} bytes, not {len(raw)}")
    return _Small.from_buffer_copy(raw.ljust(SMALL_SIZE, b"\0"))


def init(argv: Sequence[str] | None = None) -> None:
    """Joins the job. It returns when all nodes have joined.

    `argv` are the arguments of the program, `sys.argv` by default. Without a launcher the job has one node.
    Raises RwapiError; EALREADY at a second call.
    """
    words = [os.fsencode(word) for word in (sys.argv if argv is None else argv)]
    array = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    _check(_library.rwapi_init(len(words), array))


def finalize() -> None:
    """Leaves the job. It waits for all living nodes, and delivers everything under way before."""
    _check(_library.rwapi_finalize())


def rank() -> int:
    """The rank of this node, from 0. RwapiError (ENOTCONN) outside of a job."""
    value = _library.rwapi_rank()
    if value < 0:
        raise _error(errno.ENOTCONN)
    return value


def size() -> int:
    """The number of nodes of the job, those that are gone included. RwapiError (ENOTCONN) outside of a job."""
    # A library may return 0 or -1 here outside of a job.
    value = _library.rwapi_size()
    if value < 1:
        raise _error(errno.ENOTCONN)
    return value


@contextmanager
def job(argv: Sequence[str] | None = None) -> Iterator[Job]:
    """Joins the job for a `with` block, and leaves it at its end. Yields a `Job` with `rank` and `size`.

    If the block ends by an exception (other than `sys.exit()` with code 0), it does not call `finalize`: that waits for
    all other nodes, which may wait for this one. The program should end then; the other nodes see it as gone.
    """
    init(argv)
    try:
        yield Job(rank(), size())
    except SystemExit as end:
        if end.code in (None, 0):
            finalize()
        raise
    finalize()


def alloc(shape: int | Sequence[int], dtype: Any = "uint8") -> Block:
    """Allocates zeroed memory that other nodes can write to, as a numpy array.

    `shape` and `dtype` are those of numpy. Needs numpy. Types that hold Python objects are refused with TypeError.
    """
    try:
        import numpy
    except ImportError as error:
        raise ImportError("rwapi.alloc needs numpy: pip install numpy") from error
    kind = numpy.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"{kind} holds Python objects, which other nodes cannot write")
    lengths = tuple(operator.index(n) for n in shape) if hasattr(shape, "__iter__") else (operator.index(shape),)
    total = kind.itemsize
    for length in lengths:
        if length < 0:
            raise ValueError(f"a dimension of {length}")
        total *= length
    net = ctypes.c_uint64(0)
    address = _library.rwapi_alloc(_within(total, 64), ctypes.byref(net))
    if not address:
        raise _error(ctypes.get_errno())
    return Block(address, net.value, lengths, kind, _release)


def _release(address: int) -> None:
    _check(_library.rwapi_free(address))


def send(node: int, data: Any) -> None:
    """Sends a small message: a bytes-like object of at most 16 bytes, such as `struct.pack` makes.

    Shorter data is filled up with zeros; the length is not transmitted. Raises Again (no room now), NodeGone,
    RwapiError (EINVAL: no such node) or ValueError (too long).
    """
    _check(_library.rwapi_send(_within(node, 32, signed=True), _pack(data)), node)


def receive() -> tuple[int, bytes] | None:
    """The next small message as (node, 16 bytes), or None if there is none.

    Raises NodeGone with the node once for each node that is gone, after its last message.
    """
    node = ctypes.c_int(-1)
    small = _Small()
    if _check_receive(_library.rwapi_receive(ctypes.byref(node), ctypes.byref(small)), node):
        return node.value, bytes(small)
    return None


def _check_receive(result: int, node: ctypes.c_int) -> int:
    # The node is only set if the error is EHOSTDOWN.
    return _check(result, node.value if node.value >= 0 else None)


def write(node: int, local: int, remote: int, size: int) -> int:
    """Writes `size` bytes of this node's memory into a block of `node`. Returns the send's identifier for `is_sent`.

    `local` and `remote` are network addresses: `Block.net`, `Block.address_of`, or a number that the other node sent.
    Leave the local memory as it is until `is_sent` returns True. A later `send` to that node arrives after it.
    Raises Again (no room now), NodeGone, RwapiError (EINVAL, EFAULT, ENOBUFS).
    """
    return _check(
        _library.rwapi_write(
            _within(node, 32, signed=True), _within(local, 64), _within(remote, 64), _within(size, 64)
        ),
        node,
    )


def write_notify(node: int, local: int, remote: int, size: int, data: Any) -> int:
    """`write`, and then `send` of `data`, in one call: `node` receives `data` when the memory is written."""
    return _check(
        _library.rwapi_write_notify(
            _within(node, 32, signed=True), _within(local, 64), _within(remote, 64), _within(size, 64), _pack(data)
        ),
        node,
    )


def is_sent(sid: int) -> bool:
    """True if the local memory of a write may be used again, False if not yet.

    Raises RwapiError: EFAULT, the target refused the write; EINVAL, no such identifier. Raises NodeGone with node None
    if the target is gone.
    """
    return bool(_check(_library.rwapi_issent(_within(sid, 64, signed=True))))


def wait(timeout: float | None = None) -> bool:
    """Sleeps until something arrived or changed: True; False if `timeout` seconds are over. None: no bound.

    Other threads run meanwhile, and signal handlers run within half a second.
    """
    if timeout is not None and not timeout >= 0:
        raise ValueError("the timeout is negative or not a number")
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        piece_ms = _WAIT_MS_MAX
        if end is not None:
            left_ms = max(0.0, end - time.monotonic()) * 1000
            piece_ms = int(min(left_ms + 0.999, _WAIT_MS_MAX))
        result = _library.rwapi_wait(piece_ms)
        if result > 0:
            return True
        if result < 0 and ctypes.get_errno() != errno.EINTR:
            raise _error(ctypes.get_errno())
        if end is not None and time.monotonic() >= end:
            return False


def barrier() -> None:
    """Waits until all living nodes have called it."""
    _check(_library.rwapi_barrier())
