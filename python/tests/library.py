"""Chooses the library for the tests, before the package is imported.

RWAPI_LIBRARY unset: a loopback library, compiled from loopback.c into a temporary directory.
RWAPI_LIBRARY=path: that library. RWAPI_LIBRARY= (empty): the library that the package finds by itself, as in a wheel.
"""

import atexit
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
IS_LOOPBACK = "RWAPI_LIBRARY" not in os.environ

if IS_LOOPBACK:
    directory = tempfile.mkdtemp(prefix="rwapi-loopback-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    library = os.path.join(directory, "librwapi.so")
    command = os.environ.get("CC", "cc").split()
    command += ["-std=c11", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    subprocess.run([*command, "-o", library, os.path.join(HERE, "loopback.c")], check=True)
    os.environ["RWAPI_LIBRARY"] = library

if importlib.util.find_spec("rwapi") is None:
    sys.path.insert(0, os.path.dirname(HERE))
PACKAGE_PATH = os.path.dirname(os.path.dirname(os.path.abspath(importlib.util.find_spec("rwapi").origin)))


def run(code, **environment):
    """Runs `code` in another process, with the same package and library. Calls such as init are made once there."""
    values = {**os.environ, "PYTHONPATH": PACKAGE_PATH, **environment}
    return subprocess.run([sys.executable, "-c", code], env=values, capture_output=True, text=True, timeout=60)
