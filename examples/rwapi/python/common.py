"""What the three examples share: the wait for room, and messages as a kind and two numbers.

A node that waits for room must go on to receive: two nodes that send to each other and receive nothing would wait for
ever. So messages that arrive meanwhile go into an inbox of this file, and `message_await` takes them from there.

All nodes are assumed to have the same byte order, because the blocks hold numbers as numpy has them.
"""

import struct
import sys
from collections import deque
from typing import NamedTuple

import rwapi

MESSAGE = struct.Struct("<IIQ")

# A wait has a bound, so that the program does not depend on a wake-up for every kind of change.
WAIT_SECONDS = 0.1


class Message(NamedTuple):
    node: int
    gone: bool  # the node is gone; the other fields are 0
    kind: int = 0
    number: int = 0
    value: int = 0


_inbox = deque()


def fail(text):
    """Ends the process without `finalize`: the other nodes see that it is gone."""
    sys.exit(f"node {rwapi.rank()}: {text}")


def fail_gone(node):
    fail(f"node {node} is gone")


def _receive():
    """One event of the library, or None."""
    try:
        received = rwapi.receive()
    except rwapi.NodeGone as error:
        return Message(error.node, True)
    if received is None:
        return None
    node, data = received
    return Message(node, False, *MESSAGE.unpack(data))


def progress():
    """After Again, or while a write is under way: receives what arrived, or sleeps until something changes."""
    received = False
    while (message := _receive()) is not None:
        _inbox.append(message)
        received = True
    if not received:
        rwapi.wait(WAIT_SECONDS)


def message_await():
    """Waits for a message, or for the report that a node is gone."""
    while True:
        if _inbox:
            return _inbox.popleft()
        message = _receive()
        if message is not None:
            return message
        rwapi.wait(WAIT_SECONDS)


def message_send(node, kind, number=0, value=0):
    """Raises rwapi.NodeGone if the node is gone."""
    data = MESSAGE.pack(kind, number, value)
    while True:
        try:
            return rwapi.send(node, data)
        except rwapi.Again:
            progress()


def data_write(node, local, remote, size):
    while True:
        try:
            return rwapi.write(node, local, remote, size)
        except rwapi.Again:
            progress()


def data_wait_sent(sid):
    """Waits until the local memory of a write may be used again. None is no write."""
    while sid is not None and not rwapi.is_sent(sid):
        progress()


def number_in(low, high):
    """The type of an argument for argparse."""

    def parse(text):
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    parse.__name__ = f"number from {low} to {high}"
    return parse
