#!/usr/bin/env python3
"""stop.py AFTER FOR PROGRAM [ARGS]: run PROGRAM, and stop it with SIGSTOP after AFTER seconds for FOR seconds.

Only the rank named by RERAIL_STOP_RANK (default 1) is stopped. The program keeps the process that the launcher knows; a
child of it does the stopping. A stopped process is a busy peer, not a broken path.
"""
import os
import signal
import sys
import time


def own_rank():
    """The rank, as this MPI's launcher tells it."""
    return os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK", "0")


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    after, length, program = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    rank = own_rank()
    if rank == os.environ.get("RERAIL_STOP_RANK", "1"):
        target = os.getpid()
        if os.fork() == 0:
            for stream in (0, 1):
                os.close(stream)
            time.sleep(after)
            if os.getppid() == target:
                os.kill(target, signal.SIGSTOP)
                print(f"stop.py: rank {rank} stopped for {length} s", file=sys.stderr, flush=True)
                time.sleep(length)
                os.kill(target, signal.SIGCONT)
                print(f"stop.py: rank {rank} goes on", file=sys.stderr, flush=True)
            os._exit(0)
    os.execvp(program[0], program)


main()
