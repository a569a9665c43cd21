"""The command line: the options of all scripts, with their help and rules.

Importing torch and transformers takes seconds, so nothing here does: a script reads and checks its options, and only
then imports `scratch_bert`.
"""
