"""The packages of the wheel. Everything else is in pyproject.toml, which cannot add packages to those that are found."""

from setuptools import find_packages, setup


RECIPES = {
    "scratch_bert_cli.recipes": "recipes"
}  # at the top level of a checkout; in a wheel, inside the command's package

setup(packages=[*find_packages(include=["scratch_bert*"]), *RECIPES], package_dir=RECIPES)
