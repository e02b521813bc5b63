"""What whoever deployed a front door wants to know: where it is, what it serves, a line to try."""

from __future__ import annotations

import json
from typing import Any

from .model import Plan, Service

_EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "generate": (
        "chat/completions",
        {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0},
    ),
    "embed": ("embeddings", {"input": ["cat", "kitten"]}),
    "rerank": ("rerank", {"query": "cat", "documents": ["kitten", "revenue"]}),
}


def endpoint(plan: Plan) -> str:
    """The front door as clients on the box itself reach it."""
    return f"{plan.public_scheme}://127.0.0.1:{plan.instance.public_port}"


def questions(plan: Plan) -> list[dict[str, str]]:
    """The services to ask a question, in the form that the module vllm_service_verify takes."""
    services = [placement.service for placement in plan.placements]
    return [{"name": service.name, "model": service.model, "task": service.task} for service in services]


def usage_lines(plan: Plan) -> list[str]:
    """Endpoint, models with their other names, and a command to try for each thing that they can do."""
    services = [placement.service for placement in plan.placements]
    first_by_task = {service.task: service for service in reversed(services)}
    return [
        f"Endpoint: {endpoint(plan)}/v1",
        *(
            f"Model: {service.model} (also {', '.join([service.name, *service.aliases])})"
            for service in services
        ),
        *(f"Try: {_command(plan, service)}" for service in services if service in first_by_task.values()),
    ]


def _command(plan: Plan, service: Service) -> str:
    path, body = _EXAMPLES[service.task]
    return (
        f"curl {_curl_options(plan)}{endpoint(plan)}/v1/{path} -H 'Content-Type: application/json' "
        f"-d '{json.dumps({'model': service.model, **body})}'"
    )


def _curl_options(plan: Plan) -> str:
    """What curl needs for a front door with a certificate for another name, and with keys."""
    unverified = "--insecure " if plan.router.secrets.has_tls else ""
    return unverified + ("" if plan.router.secrets.api_keys is None else "-H 'Authorization: Bearer KEY' ")
