"""Runs mpi4py's own tests, and writes down for each rank what became of each test.

    suite.py --tests DIR --modules test_a,test_b [--without PATTERN ...]

Each rank appends one line of JSON to RERAIL_SUITE_RESULTS.RANK before and after every test, so that a test which hangs or kills the process
is named. The phases of tests/mpi/phase.c (RERAIL_PHASES) are announced from here, because a library preloaded into Python does not
see the calls of an MPI that Python loads by itself: `message-1` before the first test, `collective-N` before the N-th.
"""

import argparse
import fnmatch
import importlib
import json
import os
import sys
import time
import unittest


def announce(phase):
    directory = os.environ.get("RERAIL_LAB_PHASES")
    if not directory or phase not in os.environ.get("RERAIL_PHASES", "").split(","):
        return
    path = os.path.join(directory, phase)
    with open(path, "w"):
        pass
    for _ in range(20000):
        if os.path.exists(path + ".done"):
            break
        time.sleep(0.001)


class Recorder(unittest.TestResult):
    """Writes each test's beginning and end."""

    def __init__(self, path):
        super().__init__()
        self.file = open(path, "a", encoding="utf-8")
        self.begun = {}
        self.bad = []
        self.count = 0

    def write(self, **fields):
        self.file.write(json.dumps(fields) + "\n")
        self.file.flush()

    def startTest(self, test):
        super().startTest(test)
        self.count += 1
        announce("message-1" if self.count == 1 else f"collective-{self.count}")
        self.begun[test.id()] = time.monotonic()
        self.write(begin=test.id())

    def end(self, test, outcome, detail=""):
        name = test.id()
        took = time.monotonic() - self.begun.get(name, time.monotonic())
        self.write(test=name, outcome=outcome, detail=detail, seconds=round(took, 4))
        if outcome not in ("ok", "skipped"):
            self.bad.append(name)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.end(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.end(test, "skipped", reason)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.end(test, "failed", self.failures[-1][1])

    def addError(self, test, error):
        super().addError(test, error)
        self.end(test, "error", self.errors[-1][1])

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        self.end(test, "ok")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.end(test, "failed", "it was expected to fail")

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.write(test=subtest.id(), outcome="failed", detail=self._exc_info_to_string(error, test), seconds=0)
            self.bad.append(subtest.id())


def tests_of(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests_of(item)
        else:
            yield item


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tests", required=True)
    parser.add_argument("--modules", required=True)
    parser.add_argument("--without", action="append", default=[])
    options = parser.parse_args()

    announce("init")
    from mpi4py import MPI

    rank, ranks = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    sys.path.insert(0, options.tests)
    sys.modules["cupy"] = None
    sys.modules["numba"] = None
    chosen = unittest.TestSuite()
    for module in options.modules.split(","):
        for test in tests_of(unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module))):
            if not any(fnmatch.fnmatchcase(test.id(), pattern) for pattern in options.without):
                chosen.addTest(test)
    recorder = Recorder(f"{os.environ['RERAIL_SUITE_RESULTS']}.{rank}")
    recorder.write(library=MPI.Get_library_version().split("\n")[0].strip("\0"), ranks=ranks)
    # As mpi4py's own runner does: what tests print of warnings is not what is asked here.
    chosen.run(recorder)
    bad = MPI.COMM_WORLD.gather(recorder.bad)
    if rank == 0:
        names = sorted({name for names in bad for name in names})
        for name in names:
            print(f"suite: not as it should be: {name}")
        if not names:
            print(f"suite: {ranks} ranks, {recorder.count} tests, all as they should be [{MPI.get_vendor()[0]}]")
        sys.stdout.flush()
    announce("finalize")
    MPI.Finalize()
    recorder.write(end=True)
    # Without another look at MPI: it has been finalized.
    os._exit(1 if recorder.bad else 0)


main()
