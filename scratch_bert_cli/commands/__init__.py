"""The commands: a file for each script and verb of `scratch-bert`. Each imports `scratch_bert`, which takes seconds,
only after its options are checked."""
