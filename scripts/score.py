#!/usr/bin/env python
from scratch_bert_cli.commands.score import main


if __name__ == "__main__":
    main()
