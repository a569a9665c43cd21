#!/usr/bin/env python
from _command import run


if __name__ == "__main__":
    run(__file__)
