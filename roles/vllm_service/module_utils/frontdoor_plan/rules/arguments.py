"""What the images themselves say of what they are to be started with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..engine import arguments
from ..model import Plan, Refusal


def commands(plan: Plan) -> dict[str, list[str]]:
    """By service, the arguments that its engine will be started with."""
    return {
        placement.service.name: arguments(placement.service, placement, plan.kind)
        for placement in plan.placements
    }


def check_answer(plan: Plan, answer: Mapping[str, Any]) -> list[Refusal]:
    """Every refusal that the image's answer gives, in the image's own words."""
    failure = answer.get("failure")
    if failure:
        return [
            Refusal(
                where="vllm_service_image",
                what=f"The image {plan.engine_image.reference} can't be asked what arguments it takes.",
                why=f"{str(failure).rstrip('.')}. A command that nobody has checked may end in a crash loop.",
                remedy="Use an image of vLLM whose python3 imports vllm, such as the default of "
                "engine_image_reference.",
            )
        ]
    return [*_sleep_mode(plan, answer), *_problems(plan, answer)]


def check_router_answer(plan: Plan, answer: Mapping[str, Any]) -> list[Refusal]:
    """A refusal where the router would not start with its settings, in its own words."""
    failure, problems = answer.get("failure"), answer.get("problems")
    said = problems.get("router") if isinstance(problems, Mapping) else None
    if not failure and not said:
        return []
    what = "can't be asked whether it takes its settings" if failure else "would not start with its settings"
    return [
        Refusal(
            where="router_*",
            what=f"The router's image {plan.router_image.reference} {what}.",
            why=f"It says: {said}" if said else f"{str(failure).rstrip('.')}.",
            remedy="Correct the variable of that name: ROUTER_TLS_KEY, for one, is router_tls_key."
            if said
            else "Let the role router build its image anew, or correct router_image.",
        )
    ]


def _sleep_mode(plan: Plan, answer: Mapping[str, Any]) -> Iterator[Refusal]:
    if not answer.get("sleep_mode"):
        yield Refusal(
            where="vllm_service_image",
            what=f"The image {plan.engine_image.reference} has no sleep mode.",
            why=f"Its vLLM ({answer.get('version') or 'of an unknown version'}) doesn't know "
            "--enable-sleep-mode, so no service on it could ever free its device.",
            remedy="Use an image of vLLM 0.27.1 or newer.",
        )


def _problems(plan: Plan, answer: Mapping[str, Any]) -> Iterator[Refusal]:
    problems = answer.get("problems")
    for placement in plan.placements:
        name = placement.service.name
        words = problems.get(name) if isinstance(problems, Mapping) else None
        if words and "--enable-sleep-mode" in str(words) and not answer.get("sleep_mode"):
            continue  # said once for the image
        if words:
            yield Refusal(
                where=f"{placement.service.where}",
                what=f"The image {plan.engine_image.reference} doesn't take the arguments of {name}.",
                why=f"Its own parser (vLLM {answer.get('version')}) says: {words}",
                remedy=f"Correct what sets it in {placement.service.where} (often extra_args, a "
                "parser's name or a quantization), or use an image that takes it.",
            )
