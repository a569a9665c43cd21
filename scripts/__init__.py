"""The command-line scripts. In a wheel they are scratch_bert_cli.scripts, and the verbs of `scratch-bert` are the same mains.

Each imports `scratch_bert` when its options are checked, as that takes seconds."""
