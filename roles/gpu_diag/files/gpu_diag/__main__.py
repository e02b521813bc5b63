"""``python3 -m gpu_diag``."""

import sys

from gpu_diag.cli import main

if __name__ == "__main__":
    sys.exit(main())
