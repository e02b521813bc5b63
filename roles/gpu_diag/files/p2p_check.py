#!/usr/bin/env python3
"""The name that people know for ``python3 -m gpu_diag p2p``."""

import sys

from gpu_diag.cli import main

if __name__ == "__main__":
    sys.exit(main(["p2p", *sys.argv[1:]]))
