"""Puts librwapi.so into the wheel where RWAPI_BUNDLE names it; everything else is in pyproject.toml.

A wheel with the library depends on the platform, but on no version of Python: its tag is py3-none-PLATFORM.
Without the library the wheel is py3-none-any, and the package searches for an installed librwapi.so.
"""

import os
import shutil

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

BUNDLE = os.environ.get("RWAPI_BUNDLE")


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        if BUNDLE and not self.editable_mode:
            shutil.copy(BUNDLE, os.path.join(self.build_lib, "rwapi", "librwapi.so"))


class WheelForPlatform(bdist_wheel):
    def get_tag(self):
        platform = super().get_tag()[2]
        return "py3", "none", platform


class DistributionForPlatform(Distribution):
    def has_ext_modules(self):
        return bool(BUNDLE)


setup(cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelForPlatform}, distclass=DistributionForPlatform)
