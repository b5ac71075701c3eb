"""Finds librwapi.so and declares its functions.

Owns: the handle of the library.
Source: rwapi.h and rwapi_ext.h of Rerail.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os

SMALL_SIZE = 16


class Small(ctypes.Structure):
    """rwapi_small_t.

    The header has 16 bytes in an array. Two integers have the same size and are passed in the same registers, and
    ctypes passes them by value correctly on every platform; older versions of ctypes did not for arrays in structures.
    """

    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


assert ctypes.sizeof(Small) == SMALL_SIZE

_SIGNATURES = {
    "rwapi_init": (ctypes.c_int, [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]),
    "rwapi_finalize": (ctypes.c_int, []),
    "rwapi_rank": (ctypes.c_int, []),
    "rwapi_size": (ctypes.c_int, []),
    "rwapi_alloc": (ctypes.c_void_p, [ctypes.c_size_t, ctypes.POINTER(ctypes.c_uint64)]),
    "rwapi_free": (ctypes.c_int, [ctypes.c_void_p]),
    "rwapi_send": (ctypes.c_int, [ctypes.c_int, Small]),
    "rwapi_receive": (ctypes.c_int, [ctypes.POINTER(ctypes.c_int), ctypes.POINTER(Small)]),
    "rwapi_write": (ctypes.c_int64, [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t]),
    "rwapi_issent": (ctypes.c_int, [ctypes.c_int64]),
    "rwapi_write_notify": (
        ctypes.c_int64,
        [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, Small],
    ),
    "rwapi_wait": (ctypes.c_int, [ctypes.c_int]),
    "rwapi_barrier": (ctypes.c_int, []),
    "rwapi_error_string": (ctypes.c_char_p, [ctypes.c_int]),
}


def _open() -> ctypes.CDLL:
    named = os.environ.get("RWAPI_LIBRARY")
    if named:
        try:
            return ctypes.CDLL(named, use_errno=True)
        except OSError as error:
            raise ImportError(f"RWAPI_LIBRARY names a library that does not load: {error}") from error

    bundled = os.path.join(os.path.dirname(os.path.abspath(__file__)), "librwapi.so")
    if os.path.exists(bundled):
        try:
            return ctypes.CDLL(bundled, use_errno=True)
        except OSError as error:
            raise ImportError(f"the librwapi.so of this package does not load: {error}") from error

    # find_library reads the linker's cache; dlopen, by the plain name, also reads LD_LIBRARY_PATH.
    name = ctypes.util.find_library("rwapi") or "librwapi.so"
    try:
        return ctypes.CDLL(name, use_errno=True)
    except OSError as error:
        raise ImportError(
            "no librwapi.so: install Rerail's RWAPI library, or set RWAPI_LIBRARY to the path of librwapi.so "
            f"({error})"
        ) from error


def load() -> ctypes.CDLL:
    """The library with all signatures declared, or ImportError with the reason.

    ctypes.CDLL releases the global interpreter lock in each call. Do not replace it by PyDLL: wait, barrier and
    finalize block, and the other calls may contend with them for the library's lock.
    """
    library = _open()
    for name, (result, arguments) in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{library._name} has no function {name}: no RWAPI library, or an old one") from None
        function.restype = result
        function.argtypes = arguments
    return library
