"""The exceptions of the package, one for each way in which a program reacts.

Source: errno values of rwapi.h; sentences of rwapi_error_string.
"""

from __future__ import annotations

import errno


class RwapiError(OSError):
    """A call of the library failed. `errno` is its error number, `strerror` its sentence."""


class Again(RwapiError):
    """There is no room now (EAGAIN). Receive what arrived, call `wait`, and retry."""


class NodeGone(RwapiError):
    """A node is gone (EHOSTDOWN). `node` is its rank, or None where the library does not report it."""

    def __init__(self, node: int | None, sentence: str = "the node is gone"):
        super().__init__(errno.EHOSTDOWN, sentence if node is None else f"node {node}: {sentence}")
        self.node = node
        self._sentence = sentence

    def __reduce__(self):
        return type(self), (self.node, self._sentence)
