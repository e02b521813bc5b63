"""Diagnostics that decide what a GPU machine may be trusted with.

Run as ``python3 -m gpu_diag``. The probes of files and of the host need nothing but the standard library
(and numpy for the values of weights); the probes of GPUs need torch.
"""
