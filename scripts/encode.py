#!/usr/bin/env python
from scratch_bert_cli.commands.encode import main


if __name__ == "__main__":
    main()
