"""Option files of whole runs: `python scripts/pretrain.py recipes/NAME.yaml …`. They are a package so that a wheel holds them."""
