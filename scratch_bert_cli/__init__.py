"""The command line: the options of all scripts, with their help and rules.

Importing torch and transformers takes seconds, so nothing here does: a script reads and checks its options, and only
then imports `scratch_bert`.
"""

from pathlib import Path


if not Path(__file__).with_name("scripts").is_dir():  # in a checkout, scripts and recipes are beside this directory
    __path__.append(str(Path(__file__).parents[1]))
