#!/usr/bin/env python
from scratch_bert_cli.commands.compare import main


if __name__ == "__main__":
    main()
