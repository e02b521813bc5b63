#!/usr/bin/env python3
"""Check the files of a model folder: the name that people know for ``python3 -m gpu_diag weights``."""

import sys

from gpu_diag.cli import main

if __name__ == "__main__":
    sys.exit(main(["weights", *sys.argv[1:]]))
