"""Calibration: services are driven through all depths, and what that takes is measured and written down.

`figures`, `page` and `engines` decide and are pure; `drive` orders the router about, `meter` looks at the
machine, `run` keeps the files. Standard library only.
"""
