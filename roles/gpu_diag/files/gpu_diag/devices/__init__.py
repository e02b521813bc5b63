"""Devices under the probes: one protocol, and what carries it out (torch, the CUDA runtime, a simulation)."""
