"""Every example in a docstring of the package is true."""

import doctest
import importlib
import pkgutil

import pytest

import inproc_jobs

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = sorted(module.name for module in pkgutil.walk_packages(inproc_jobs.__path__, "inproc_jobs."))


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str):
    """They run, and print what they say."""
    if name.endswith("__main__"):
        pytest.skip("runs a program when it is imported")
    assert doctest.testmod(importlib.import_module(name), optionflags=FLAGS).failed == 0


def test_the_package_has_examples():
    """The finder sees them: were none found, the test above would pass for nothing."""
    found = [
        test
        for name in MODULES
        if not name.endswith("__main__")
        for test in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
        if test.examples
    ]
    assert len(found) >= 10
