"""The command line: a thin layer over `scratch_bert`, which checks the options before it imports PyTorch."""
