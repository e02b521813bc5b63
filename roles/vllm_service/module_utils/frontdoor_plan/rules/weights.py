"""Weights: the folder is there, and its evidence is what the policy takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..model import Desired, Discovered, Refusal, Service, WeightEvidence

_COMMAND = "./box site -i INVENTORY"
_PULL = "./box pull OWNER/NAME -i INVENTORY (on the box: vllmctl pull OWNER/NAME)"
_VALUES_READ = frozenset({"verified", "values_only"})


def check_folders(desired: Desired, discovered: Discovered) -> list[Refusal]:
    """Folders that aren't there and that nobody is going to fetch: told before anything is changed."""
    absent = (
        _folder(service, discovered)
        for service in desired.services
        if service.path in discovered.paths and service.path not in desired.fetched_models
    )
    return [refusal for refusal in absent if refusal is not None]


def check(desired: Desired, discovered: Discovered, evidence: Mapping[str, WeightEvidence]) -> list[Refusal]:
    """Every refusal that model folders and the evidence about them give."""
    return [
        refusal
        for service in desired.services
        for refusal in _of_service(service, desired, discovered, evidence)
    ]


def vouched_for(service: Service, evidence: Mapping[str, WeightEvidence]) -> bool:
    """Whether the values of its weights are known to be sound, which is more than a policy may ask for.

    What the plan demands of its devices in any case (integrity, the control arm) isn't asked again here.
    """
    found = evidence.get(service.path)
    return found is not None and not found.outdated and found.verdict in _VALUES_READ


def _of_service(
    service: Service, desired: Desired, discovered: Discovered, evidence: Mapping[str, WeightEvidence]
) -> Iterator[Refusal]:
    absent = _folder(service, discovered)
    if absent is not None:
        yield absent
        return
    found = evidence.get(service.path)
    if found is None:
        yield Refusal(
            where=f"{service.where}.model",
            what=f"Nobody has checked the weights in {service.path} yet.",
            why="A damaged file answers with garbage, and nothing else would notice.",
            remedy=f"Run {_COMMAND} without --tags, --skip-tags and --start-at-task: it checks the weights "
            "before it plans.",
        )
    elif found.outdated:
        yield Refusal(
            where=f"{service.where}.model",
            what=f"The weights in {service.path} are not those that were checked ({found.finished_at}).",
            why=f"{'; '.join(found.outdated[:5])}.",
            remedy=f"Run {_COMMAND} without --tags, --skip-tags and --start-at-task: it checks them anew.",
        )
    elif found.verdict not in desired.weights_required or found.verdict == "failed":
        yield _not_accepted(service, desired, found)


def _folder(service: Service, discovered: Discovered) -> Refusal | None:
    facts = discovered.paths.get(service.path)
    if facts is not None and facts.is_directory and facts.entries > 0:
        return None
    if facts is None or not facts.exists:
        what = f"The model folder {service.path} of {service.name} isn't there."
    elif not facts.is_directory:
        what = f"{service.path}, the model folder of {service.name}, is not a folder."
    else:
        what = f"The model folder {service.path} of {service.name} is empty."
    return Refusal(
        where=f"{service.where}.{'model' if service.path.endswith('/' + service.model) else 'path'}",
        what=what,
        why="The engine would start without a model and fail. An empty folder often is a network mount "
        "that is not mounted.",
        remedy=f"Put the model there, mount what holds it, fetch it from a hub with {_PULL}, or correct the "
        "name.",
    )


def _not_accepted(service: Service, desired: Desired, found: WeightEvidence) -> Refusal:
    accepted = ", ".join(desired.weights_required)
    if found.verdict == "failed":
        remedy = (
            "Fetch the model anew beside the bad copy, and point path to it. The evidence names tensor, "
            f"shard and offset; it lies in {desired.instance.evidence}/weights."
        )
    else:
        remedy = (
            "Fetch the model in a form that can be checked (safetensors, with the hub's checksums), or, "
            f"knowing the risk, add {found.verdict} to vllm_service_weights_required."
        )
    return Refusal(
        where=f"{service.where}.model",
        what=f"The verdict on the weights in {service.path} is {found.verdict} ({found.finished_at}).",
        why=f"The policy vllm_service_weights_required takes: {accepted}.",
        remedy=remedy,
    )
