"""In the stand-in's image this module stands where vLLM's API server is: the same command line starts it."""

from __future__ import annotations

import argparse
import asyncio

from tests.standin.server import command_line, serve


def main() -> None:
    """Serve what the plan's command line asks for, as far as a stand-in can."""
    parser = argparse.ArgumentParser(prog="vllm.entrypoints.openai.api_server")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name", dest="model", required=True)
    parser.add_argument("--convert", dest="task", default="generate", choices=["embed", "classify"])
    asked, _ = parser.parse_known_args()
    task = {"classify": "rerank"}.get(asked.task, asked.task)
    words = ["--host", asked.host, "--port", str(asked.port), "--model", asked.model, "--task", task]
    arguments = command_line().parse_args([*words, "--dialect", "0.27.1", "--boot-seconds", "1"])
    asyncio.run(serve(arguments))


if __name__ == "__main__":
    main()
