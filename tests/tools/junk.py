#!/usr/bin/env python3
"""junk.py PROGRAM [ARGS]: run PROGRAM while a child throws garbage at every port it and its peers listen on.

What is thrown, from every address of this node to its own ports and to those of the peers:
  - random UDP datagrams of 0 to 1400 bytes;
  - captured datagrams again: as they were, cut short, with a bit flipped; from another port and, where the system lets us,
    with the sender's own address and port, so that the receiver sees a true repetition;
  - TCP connections that send nothing, random bytes, or the first captured bytes of a real connection, and hang up.

  - with RERAIL_STRAYS=N, N connections that are kept open and never say anything, and a scan of ports.

Ports are learnt from packets on the rails (interfaces named rail*) and from /proc/net. Needs CAP_NET_RAW. The program must
not notice any of it. At the end the child prints what it sent.
"""
import collections
import errno
import os
import random
import resource
import select
import socket
import struct
import sys
import time

PER_SECOND = 300
TCP_PER_SECOND = 10
STRAYS_PER_SECOND = 1500


def own_rank():
    """The rank, as this MPI's launcher tells it."""
    return os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK", "0")


def local_ports():
    """UDP ports in use and TCP ports that listen, in this network namespace."""
    found = {"udp": set(), "tcp": set()}
    for kind, wanted in (("udp", None), ("udp6", None), ("tcp", "0A"), ("tcp6", "0A")):
        try:
            lines = open(f"/proc/net/{kind}").read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if wanted is None or fields[3] == wanted:
                found[kind[:3]].add(int(fields[1].rsplit(":", 1)[1], 16))
    return found


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def raw_udp(source, destination, payload):
    """An IP packet with a UDP datagram from any address and port we like (checksum 0: none)."""
    udp = struct.pack("!HHHH", source[1], destination[1], 8 + len(payload), 0) + payload
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), random.getrandbits(16), 0, 64, 17, 0,
                       socket.inet_aton(source[0]), socket.inet_aton(destination[0]))
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + udp


def mangle(random_source, payload):
    way = random_source.randrange(4)
    if way == 0 or not payload:
        return random_source.randbytes(random_source.randrange(1401))
    if way == 1:
        return payload[: random_source.randrange(len(payload))]
    if way == 2:
        changed = bytearray(payload)
        changed[random_source.randrange(len(changed))] ^= 1 << random_source.randrange(8)
        return bytes(changed)
    return payload


def throw(parent):
    choose = random.Random(int(os.environ.get("RERAIL_JUNK_SEED", "1")) + int(own_rank()))
    sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setblocking(False)
    rails = {name for _, name in socket.if_nameindex() if name.startswith("rail")}
    datagrams = collections.deque(maxlen=512)  # (source, destination, payload)
    openings = collections.deque(maxlen=64)    # (destination, first bytes of a TCP stream)
    udp_targets, tcp_targets = set(), set()
    own_addresses = set()
    pending = []
    strays, strays_wanted, strays_begun = [], int(os.environ.get("RERAIL_STRAYS", "0")), None
    if strays_wanted:
        # this child alone may have so many descriptors; the program keeps its own limit
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sent = collections.Counter()
    next_udp = next_tcp = next_look = time.monotonic()
    while os.getppid() == parent:
        select.select([sniffer], [], [], 0.002)
        for _ in range(200):
            try:
                packet, (interface, _, direction, _, _) = sniffer.recvfrom(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            if interface not in rails or len(packet) < 28:
                continue
            offset = (packet[0] & 15) * 4
            source, destination = socket.inet_ntoa(packet[12:16]), socket.inet_ntoa(packet[16:20])
            ports = struct.unpack("!HH", packet[offset:offset + 4])
            own_addresses.add(source if direction == socket.PACKET_OUTGOING else destination)
            if packet[9] == 17:
                datagrams.append(((source, ports[0]), (destination, ports[1]), packet[offset + 8:]))
                udp_targets.add((destination, ports[1]))
            elif packet[9] == 6:
                flags = packet[offset + 13]
                data = packet[offset + (packet[offset + 12] >> 4) * 4:]
                if flags & 0x12 == 2:
                    tcp_targets.add((destination, ports[1]))
                if data and (destination, ports[1]) in tcp_targets:
                    openings.append(((destination, ports[1]), data[:1400]))
        now = time.monotonic()
        if now >= next_look:
            next_look = now + 1
            here = local_ports()
            for address in own_addresses:
                udp_targets.update((address, port) for port in here["udp"])
                tcp_targets.update((address, port) for port in here["tcp"])
        if udp_targets and now >= next_udp:
            next_udp = now + 1 / PER_SECOND
            source, destination, payload = choose.choice(datagrams) if datagrams else (None, None, b"")
            if source and choose.random() < 0.5:
                try:
                    raw.sendto(raw_udp(source, destination, mangle(choose, payload)), (destination[0], 0))
                    sent["datagrams with a forged sender"] += 1
                except OSError:
                    sent["datagrams refused by the system"] += 1
            else:
                target = destination if destination and choose.random() < 0.7 else choose.choice(sorted(udp_targets))
                try:
                    udp.sendto(mangle(choose, payload), target)
                    sent["datagrams"] += 1
                except OSError:
                    sent["datagrams refused by the system"] += 1
        if tcp_targets and now >= next_tcp:
            next_tcp = now + 1 / TCP_PER_SECOND
            stream = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            stream.setblocking(False)
            stream.connect_ex(choose.choice(sorted(tcp_targets)))
            pending.append((now + choose.random() * 2, stream))
            sent["connections"] += 1
        # a port of both kinds is the provider's: the launcher's own are not to be filled up
        both = sorted(tcp_targets & udp_targets) if strays_wanted else []
        if both:
            strays_begun = strays_begun or now
            due = min(strays_wanted, int((now - strays_begun) * STRAYS_PER_SECOND))
            while len(strays) < due:
                stray = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                stray.setblocking(False)
                stray.connect_ex(choose.choice(both))
                strays.append(stray)
            if len(strays) < strays_wanted:
                # a scan, a port at a time
                where = choose.choice(both)[0], choose.randrange(1, 65536)
                probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                probe.setblocking(False)
                probe.connect_ex(where)
                probe.close()
                sent["scanned ports"] += 1
        for item in [item for item in pending if item[0] <= now]:
            pending.remove(item)
            try:
                way = choose.randrange(3)
                if way == 1:
                    item[1].send(choose.randbytes(choose.randrange(1, 4000)))
                if way == 2 and openings:
                    item[1].send(mangle(choose, choose.choice(openings)[1]))
            except OSError:
                pass
            item[1].close()
    for stray in strays:
        # one that was made stands, or was thrown out since
        try:
            stray.getpeername()
            sent["idle connections"] += 1
        except OSError:
            if stray.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (errno.ECONNRESET, errno.EPIPE):
                sent["idle connections"] += 1
    words = ", ".join(f"{count} {what}" for what, count in sorted(sent.items())) or "nothing: no port was found"
    print(f"junk.py: sent {words}", file=sys.stderr, flush=True)
    report = os.environ.get("RERAIL_JUNK_REPORT")
    if report:
        with open(f"{report}.{own_rank()}", "w") as file:
            file.write(f"{sum(sent.values())}\n{words}\n")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    parent = os.getpid()
    if os.fork() == 0:
        os.setsid()
        try:
            throw(parent)
        except Exception as error:
            print(f"junk.py: {error!r}", file=sys.stderr, flush=True)
        os._exit(0)
    os.execvp(sys.argv[1], sys.argv[1:])


main()
