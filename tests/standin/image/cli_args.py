"""In the stand-in's image this stands where vLLM's parser of arguments is: it takes what the plan renders."""

from __future__ import annotations

import argparse

_SWITCHES = (
    "--enable-sleep-mode",
    "--enforce-eager",
    "--disable-custom-all-reduce",
    "--enable-auto-tool-choice",
    "--trust-remote-code",
)
_VALUES = (
    "--host",
    "--model",
    "--served-model-name",
    "--runner",
    "--convert",
    "--quantization",
    "--reasoning-parser",
    "--tool-call-parser",
    "--distributed-executor-backend",
    "--disable-access-log-for-endpoints",
    "--chat-template",
)
_NUMBERS = ("--port", "--max-model-len", "--tensor-parallel-size", "--max-num-seqs", "--seed")


def make_arg_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Give a parser the flags of the stand-in."""
    for flag in _SWITCHES:
        parser.add_argument(flag, action="store_true")
    for flag in _VALUES:
        parser.add_argument(flag)
    for flag in _NUMBERS:
        parser.add_argument(flag, type=int)
    return parser
