#!/usr/bin/env python
from scratch_bert_cli.commands.tokenizer import main


if __name__ == "__main__":
    main()
