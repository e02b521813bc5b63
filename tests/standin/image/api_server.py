"""In the stand-in's image this module stands where vLLM's API server is: the same command line starts it."""

from __future__ import annotations

import argparse
import asyncio

from tests.standin.server import serve


def main() -> None:
    """Serve what the plan's command line asks for, as far as a stand-in can."""
    parser = argparse.ArgumentParser(prog="vllm.entrypoints.openai.api_server")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name", dest="model", required=True)
    parser.add_argument("--convert", dest="task", default="generate", choices=["embed", "classify"])
    arguments, _ = parser.parse_known_args()
    arguments.task = {"classify": "rerank"}.get(arguments.task, arguments.task)
    for name, value in {"dialect": "0.27.1", "device": [], "launcher_port": 0, "boot_seconds": 1.0}.items():
        setattr(arguments, name, value)
    asyncio.run(serve(arguments))


if __name__ == "__main__":
    main()
