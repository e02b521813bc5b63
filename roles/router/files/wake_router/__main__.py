"""`python3 -m wake_router` runs the router; `schema` prints the registry's JSON Schema, `schema
device-memory` that of the plan's figures beside it, and `check` says whether a router would start with the
settings on standard input.
"""

from __future__ import annotations

import json
import os
import sys


def main(arguments: list[str]) -> int:
    """Dispatch; returns the exit status."""
    if arguments == ["schema"]:
        from wake_router.registry import schema

        print(json.dumps(schema(), indent=2))
        return 0
    if arguments == ["schema", "device-memory"]:
        from wake_router import memory_plan

        print(json.dumps(memory_plan.schema(), indent=2))
        return 0
    if arguments == ["check"]:
        from wake_router.check import answer

        print(json.dumps(answer(json.load(sys.stdin))))
        return 0
    if arguments:
        print(
            "usage: python3 -m wake_router [schema [device-memory] | check]\n"
            "(settings come from the environment)",
            file=sys.stderr,
        )
        return 2
    from wake_router.main import run

    return run(os.environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
