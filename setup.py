"""The packages of the wheel. Everything else is in pyproject.toml, which cannot add packages to those that are found."""

import sys

from setuptools import find_packages, setup


# At the top level of a checkout; in a wheel, inside the command's package. Not in an editable installation, which would
# then be hidden by the folder of a clone, as it has the package's name.
RECIPES = {} if "editable_wheel" in sys.argv else {"scratch_bert_cli.recipes": "recipes"}

setup(packages=[*find_packages(include=["scratch_bert*"]), *RECIPES], package_dir={"": ".", **RECIPES})
