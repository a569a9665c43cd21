"""The packages of the wheel. Everything else is in pyproject.toml, which cannot add packages to those that are found."""

import sys

from setuptools import find_packages, setup


RECIPES = {
    "scratch_bert_cli.recipes": "recipes"
}  # at the top level of a checkout; in a wheel, inside the command's package

if "editable_wheel" in sys.argv:  # with recipes, it would be hidden by the folder of a clone, which has its name
    setup(packages=find_packages(include=["scratch_bert*"]), package_dir={"": "."})
else:
    setup(packages=[*find_packages(include=["scratch_bert*"]), *RECIPES], package_dir=RECIPES)
