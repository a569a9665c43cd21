import runpy

import pytest

from helpers import ROOT


@pytest.fixture(scope="session")
def example():
    """The functions of docs/tiny_example.py."""
    return runpy.run_path(str(ROOT / "docs/tiny_example.py"))
