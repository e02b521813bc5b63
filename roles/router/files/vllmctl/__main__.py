"""`python3 -m vllmctl`."""

import sys

from vllmctl.app import main

sys.exit(main())
