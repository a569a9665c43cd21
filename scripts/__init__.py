"""The command-line scripts. In a wheel they are scratch_bert_cli.scripts, and the verbs of `scratch-bert` call them.

Each imports `scratch_bert`, which takes seconds, only after its options are checked."""
