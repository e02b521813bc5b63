"""Measures the router beside the bare upstream and nginx: `python -m tests.bench [--quick] [--json FILE]`."""
