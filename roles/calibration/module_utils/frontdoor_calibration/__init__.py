"""Calibration: services are driven through all depths, and what that takes of memory and time is written
down.

`figures` and `page` decide and are pure; `drive` orders the router about, `meter` looks at the machine.
Standard library only.
"""
