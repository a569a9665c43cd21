"""The packages of the wheel. Everything else is in pyproject.toml, which cannot add packages to those that are found."""

from setuptools import find_packages, setup


# At the top level of a checkout, where README and Makefile call them; in a wheel, inside the command's package.
INSIDE = {"scratch_bert_cli.scripts": "scripts", "scratch_bert_cli.recipes": "recipes"}

setup(packages=[*find_packages(include=["scratch_bert*"]), *INSIDE], package_dir=INSIDE)
