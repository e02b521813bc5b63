"""Runs inside an engine's image: has vLLM's own argument parser read commands, and starts nothing.

Standard input: `{"commands": {service: [argument, ...]}}`. The last line of standard output is
`{"version": ..., "sleep_mode": bool, "problems": {service: sentence}}`; a service without a problem is not in
it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

# Where the parser lives: vLLM 0.32.0 and 0.27.1.
PARSER_MODULES = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
SERVER_MODULE = "vllm.entrypoints.openai.api_server"
LONGEST_SENTENCE = 600


def parser_module() -> ModuleType:
    """The module that makes the server's parser. Raises ModuleNotFoundError where there is none."""
    for name in PARSER_MODULES[:-1]:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    return importlib.import_module(PARSER_MODULES[-1])


def problem_of(parser: argparse.ArgumentParser, module: ModuleType, command: Sequence[str]) -> str | None:
    """The parser's own words on why it doesn't take a command; None when it does."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parsed = parser.parse_args(list(command))
            parsed.chat_template = None  # a file of the model folder, which isn't mounted here
            for check in checks(module):
                check(parsed)
    except SystemExit:
        return last_words(said.getvalue())
    except (TypeError, ValueError, KeyError) as error:
        return last_words(str(error.args[0] if error.args else error))
    return unknown_reasoning_parser(getattr(parsed, "reasoning_parser", None))


def unknown_reasoning_parser(name: str | None) -> str | None:
    """vLLM looks the name up only when the engine starts; here it is looked up now."""
    if not name:
        return None
    with contextlib.suppress(ImportError, AttributeError):
        known = importlib.import_module("vllm.reasoning").ReasoningParserManager.list_registered()
        if name not in known:
            return f"invalid reasoning parser: {name} (choose from {', '.join(sorted(known))})"
    return None


def checks(module: ModuleType) -> list[Any]:
    """vLLM's own checks of parsed arguments, which know the names of tool and reasoning parsers."""
    server = sys.modules.get(SERVER_MODULE)
    found = [(module, "validate_parsed_serve_args"), (server, "validate_api_server_args")]
    return [getattr(where, name) for where, name in found if where is not None and hasattr(where, name)]


def last_words(text: str) -> str:
    """What a parser said last: its error, without the usage before it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.split("error: ", 1)[-1] for line in lines if "error: " in line]
    sentence = (errors or lines or ["it ended without saying why"])[-1]
    return sentence[:LONGEST_SENTENCE]


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What the image says of all commands."""
    module = parser_module()
    with contextlib.suppress(Exception):  # without it the names of parsers aren't checked, and nothing else
        importlib.import_module(SERVER_MODULE)
    make = getattr(module, "FlexibleArgumentParser", argparse.ArgumentParser)
    parser = module.make_arg_parser(make(prog="vllm"))
    problems = {
        service: problem
        for service, command in request["commands"].items()
        if (problem := problem_of(parser, module, command)) is not None
    }
    return {
        "version": getattr(importlib.import_module("vllm"), "__version__", None),
        "sleep_mode": any("--enable-sleep-mode" in action.option_strings for action in parser._actions),
        "problems": problems,
    }


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))), flush=True)
