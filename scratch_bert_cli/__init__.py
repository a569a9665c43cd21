"""The command line: the options of all scripts, with their help and their rules.

Importing torch and transformers takes seconds. Here, nothing imports them: a script reads and checks its options, and only
then imports `scratch_bert`.
"""
