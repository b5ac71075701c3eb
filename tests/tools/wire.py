#!/usr/bin/env python3
"""wire.py REPORT PROGRAM [ARGS]: run PROGRAM while a child looks for its words on the wire.

The child reads every IP packet of the rails of this node (interfaces named rail*) through a packet socket, and counts those of
each protocol that have payload, and those in which WORDS (tests/mpi/known.c) can be read. Needs CAP_NET_RAW. REPORT.RANK gets
one line of JSON, such as {"udp": {"packets": 900, "readable": 0}, "tcp": {"packets": 4000, "readable": 0}}. The program waits
until the child listens.
"""
import ctypes
import json
import os
import select
import signal
import socket
import sys

# the last bytes of a period and the first of the next are found as well: the program repeats them
WORDS = b"Rerail: these words are known to whoever looks at the wire. "
PROTOCOLS = {6: "tcp", 17: "udp"}


def has_words(packet):
    """Whether a part of the words is in it that chance does not bring: half a period, wherever it begins."""
    return any(WORDS[at:at + 30] in packet for at in (0, 30))


def listen(sniffer, report, parent, ready):
    # a program that ends does not leave us behind
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    rails = {name for _, name in socket.if_nameindex() if name.startswith("rail")}
    counts = {name: {"packets": 0, "readable": 0} for name in PROTOCOLS.values()}
    over = []
    signal.signal(signal.SIGTERM, lambda *_: over.append(True))
    os.write(ready, b"x")
    while not over and os.getppid() == parent:
        if not select.select([sniffer], [], [], 0.05)[0]:
            continue
        for _ in range(1000):
            try:
                packet, address = sniffer.recvfrom(1 << 17, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            if address[0] not in rails or len(packet) < 28 or packet[9] not in PROTOCOLS:
                continue
            head = (packet[0] & 15) * 4
            body = packet[head + (8 if packet[9] == 17 else (packet[head + 12] >> 4) * 4):]
            if body:
                count = counts[PROTOCOLS[packet[9]]]
                count["packets"] += 1
                count["readable"] += has_words(body)
    rank = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK", "0")
    with open(f"{report}.{rank}", "w") as file:
        file.write(json.dumps(counts) + "\n")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    sniffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
    parent = os.getpid()
    heard, ready = os.pipe()
    if os.fork() == 0:
        os.setsid()
        try:
            listen(sniffer, sys.argv[1], parent, ready)
        except Exception as error:
            print(f"wire.py: {error!r}", file=sys.stderr, flush=True)
        os._exit(0)
    sniffer.close()
    os.close(ready)
    if not os.read(heard, 1):
        sys.exit("wire.py: the child does not listen")
    os.execvp(sys.argv[2], sys.argv[2:])


main()
