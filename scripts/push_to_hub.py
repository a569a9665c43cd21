#!/usr/bin/env python
from scratch_bert_cli.commands.push_to_hub import main


if __name__ == "__main__":
    main()
