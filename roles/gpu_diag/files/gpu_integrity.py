#!/usr/bin/env python3
"""The name that people know for ``python3 -m gpu_diag integrity``."""

import sys

from gpu_diag.cli import main

if __name__ == "__main__":
    sys.exit(main(["integrity", *sys.argv[1:]]))
