"""Communicators that are made of groups, in sessions of MPI, without MPI_COMM_WORLD. For four ranks.

    sessions.py                every group in two rounds, in two sessions that are there at the same time
    sessions.py --without N    rank N ends instead; the groups that it is a member of are errors for the others

Each round makes a communicator of all ranks, of both halves at once, of pairs across them, and of groups that overlap; each is duplicated,
used for an allreduce and freed. Names are used again. Sessions are not opened one after the other: Open MPI 5.0 crashes in the second
MPI_Session_finalize of that, under mpirun as well.
"""

import argparse
import signal
import sys

import mpi4py

mpi4py.rc.initialize = False

import numpy  # noqa: E402
from mpi4py import MPI  # noqa: E402

RANKS = 4
# A rank that waits for ever is killed, and its launcher says so.
PATIENCE_S = 120


def of_group(session, ranks, name):
    """Makes a communicator of these ranks, uses it and frees it, where this rank is one of them. Whether it could be made."""
    world = session.Create_group("mpi://WORLD")
    try:
        if world.Get_rank() not in ranks:
            return True
        group = world.Incl(ranks)
        try:
            made = MPI.Intracomm.Create_from_group(group, name)
        except MPI.Exception:
            return False
        finally:
            group.Free()
        assert made.Get_size() == len(ranks), (name, made.Get_size())
        for comm in (made, made.Dup()):
            data = numpy.full(100000, 10 ** world.Get_rank(), "i8")
            comm.Allreduce(MPI.IN_PLACE, data)
            assert (data == sum(10**rank for rank in ranks)).all(), (name, data)
            comm.Free()
        return True
    finally:
        world.Free()


def all_groups(rank):
    """The groups in the order in which a rank makes them."""
    half = [0, 1] if rank < 2 else [2, 3]
    across = [0, 2] if rank % 2 == 0 else [1, 3]
    yield [0, 1, 2, 3], "all"
    yield half, f"half {half[0]}"
    yield across, f"across {across[0]}"
    for ranks in ([0, 1, 2], [1, 2, 3], [3, 0], [2]):
        yield ranks, f"overlap {ranks[0]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--without", type=int)
    without = parser.parse_args().without

    signal.alarm(PATIENCE_S)
    sessions = [MPI.Session.Init(), MPI.Session.Init()]
    world = sessions[0].Create_group("mpi://WORLD")
    rank, size = world.Get_rank(), world.Get_size()
    world.Free()
    assert size == RANKS, size
    if without is None:
        for session in sessions + sessions:
            for ranks, name in all_groups(rank):
                assert of_group(session, ranks, name), name
    elif rank != without:
        beside = without ^ 1
        rest = [other for other in range(RANKS) if other not in (without, beside)]
        # The rank beside it comes later: Open MPI's library does not end a wait for a rank of its own host.
        if rank != beside:
            assert not of_group(sessions[0], sorted(rest + [without]), "with it")
        assert of_group(sessions[0], sorted(rest + [beside]), "without it")
        assert not of_group(sessions[0], list(range(RANKS)), "all")
    for session in sessions:
        session.Finalize()
    library = MPI.Get_library_version().split(",")[0].splitlines()[0]
    # one write: lines of two ranks must not mix
    sys.stdout.write(f"rank {rank} of [{library}]: groups as they should be\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
