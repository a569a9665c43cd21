#!/usr/bin/env python
from scratch_bert_cli.commands.evaluate_model import main


if __name__ == "__main__":
    main()
