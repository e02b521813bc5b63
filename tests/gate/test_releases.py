"""Releases through a real ansible-playbook: what is kept, and that going back takes the same gate."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import frontdoor_releases as releases
import pytest
from plan_support import ENGINE_IMAGES, ROUTER_IMAGE, box
from plan_workshop import NO_RELEASES, Run, Workshop

PLAYBOOKS = Path(__file__).parent / "playbooks"
INVENTORY = "inventory/rehearsal/hosts.yml"
KEY = "sk-a-secret-of-the-test"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


def facts() -> dict[str, Any]:
    """The recorded box, whose images are found by their ids as well."""
    found = copy.deepcopy(box("rehearsal"))
    found["images"] |= {image["id"]: image for image in list(found["images"].values())}
    return found


def run(workshop: Workshop, playbook: str, on: dict[str, Any], **extra: Any) -> Run:
    declared = {"vllm_service_image": ENGINE_IMAGES["rehearsal"], "router_image": ROUTER_IMAGE, **extra}
    return workshop.run(PLAYBOOKS / playbook, INVENTORY, on, "-e", json.dumps(declared))


@pytest.fixture(scope="module")
def first(workshop: Workshop) -> Run:
    """A deployment with keys, as it is asked to be kept."""
    workshop.releases = NO_RELEASES
    found = run(workshop, "stages.yml", facts(), router_api_keys=[{"name": "a", "key": KEY}])
    assert found.code == 0, found.output
    return found


def release_of(kept: dict[str, Any], number: int, **variables: Any) -> releases.Release:
    content = releases.Content(
        variables=kept["content"]["variables"] | variables,
        images=kept["content"]["images"],
        services=kept["content"]["services"],
        files={},
    )
    return releases.Release(number, "2026-11-30T12:00:00+00:00", "somebody", content)


def store(*found: releases.Release, deployed: dict[str, str] | None = None) -> dict[str, Any]:
    documents = [releases.to_document(release) for release in found]
    return {"releases": documents, "problems": {}, "deployed": deployed or {}}


def test_a_deployment_keeps_its_declaration_without_secrets(first: Run) -> None:
    (kept,) = first.kept
    assert kept["content"]["variables"]["frontdoor_instance"] == "rehearsal"
    assert set(kept["content"]["services"]) == {"text", "embed"}
    assert kept["content"]["images"]["engine"]["id"].startswith("sha256:")
    assert "engines/compose.yml" in kept["files"]
    assert KEY not in json.dumps(kept) and KEY not in first.output
    assert KEY not in json.dumps(first.asked_for)
    assert all(asked["previous"] is None for asked in first.asked_for)


def test_what_fails_may_go_back_to_the_newest_release(workshop: Workshop, first: Run) -> None:
    workshop.releases = store(release_of(first.kept[0], 1), release_of(first.kept[0], 2))
    again = run(workshop, "stages.yml", facts(), router_hold_max_seconds=60)
    assert again.code == 0, again.output
    router, engines = again.project("-router"), again.project("-engines")
    assert {router["previous"]["name"], engines["previous"]["name"]} == {"release 2"}
    assert engines["previous"]["compose"] == first.project("-engines")["compose"]
    assert router["compose"] != router["previous"]["compose"]


def test_what_fails_goes_back_to_nothing_that_its_own_image_refuses(workshop: Workshop, first: Run) -> None:
    services = copy.deepcopy(first.kept[0]["content"]["variables"]["vllm_service_services"])
    services["text"]["extra_args"] = ["--max-logprobs=7"]
    workshop.releases = store(release_of(first.kept[0], 1, vllm_service_services=services))
    known = run(workshop, "stages.yml", facts())
    assert known.project("-engines")["previous"]["name"] == "release 1", known.output
    again = run(workshop, "stages.yml", facts() | {"unknown_argument": "--max-logprobs=7"})
    assert again.code == 0, again.output
    assert [asked["previous"] for asked in again.asked_for] == [None, None]


def test_going_back_deploys_the_earlier_declaration_with_its_images(workshop: Workshop, first: Run) -> None:
    kept = first.kept[0]
    workshop.releases = store(
        release_of(kept, 1, router_idle_sleep_minutes=3),
        release_of(kept, 2),
        deployed=kept["content"]["services"],
    )
    back = run(workshop, "rollback.yml", facts(), router_idle_sleep_minutes=99, vllm_service_image="gone:1")
    assert back.code == 0, back.output
    assert "release 1 of 2026-11-30" in back.output
    registry = next(f for f in back.project("-engines")["files"] if f["path"] == "registry/registry.json")
    assert {s["idle_sleep_seconds"] for s in json.loads(registry["content"])["services"]} == {180}
    images = {service["image"] for service in back.project("-engines")["compose"]["services"].values()}
    assert images == {kept["content"]["images"]["engine"]["id"]}
    assert (back.kept[0]["back_to"], back.project("-engines")["previous"]["name"]) == (1, "release 2")


def test_keys_of_today_stay_when_one_goes_back(workshop: Workshop, first: Run) -> None:
    workshop.releases = store(release_of(first.kept[0], 1))
    back = run(workshop, "rollback.yml", facts(), router_api_keys=[{"name": "today", "key": "other"}])
    assert back.code == 0, back.output
    keys = next(f for f in back.project("-router")["files"] if f["path"] == "secrets/api-keys.json")
    assert [key["name"] for key in json.loads(keys["secret_content"])["keys"]] == ["today"]


def refused(back: Run, words: str) -> None:
    assert back.code == 2, back.output
    assert "Traceback" not in back.output
    assert words in " ".join(back.output.split())
    assert (back.asked_for, back.kept) == ((), ())


def test_going_back_needs_todays_evidence(workshop: Workshop, first: Run) -> None:
    workshop.releases = store(release_of(first.kept[0], 1))
    unproven = facts() | {"evidence": {"weights": []}}
    refused(run(workshop, "rollback.yml", unproven), "There is no plan")


@pytest.mark.parametrize(
    ("forged", "words"),
    [
        ({"vllm_service_environment": {"NCCL_P2P_DISABLE": "0"}}, "NCCL_P2P_DISABLE is set to '0' by hand."),
        ({"vllm_service_services": {}}, "vllm_service_services is empty"),
        ({"vllm_service_weights_required": ["anything"]}, "vllm_service_weights_required"),
    ],
)
def test_a_release_with_a_forged_digest_meets_the_same_rules(
    workshop: Workshop, first: Run, forged: dict[str, Any], words: str
) -> None:
    workshop.releases = store(release_of(first.kept[0], 1, **forged))
    refused(run(workshop, "rollback.yml", facts()), words)


def test_a_release_whose_image_is_gone_is_refused(workshop: Workshop, first: Run) -> None:
    workshop.releases = store(release_of(first.kept[0], 1))
    refused(run(workshop, "rollback.yml", box("rehearsal")), "is not on the box")


@pytest.mark.parametrize(
    ("number", "words"),
    [(7, "There is no release 7"), (0, "no release before release 1"), ("x", "number of a")],
)
def test_a_release_that_is_not_there(workshop: Workshop, first: Run, number: Any, words: str) -> None:
    kept = first.kept[0]
    workshop.releases = store(release_of(kept, 1), deployed=kept["content"]["services"])
    refused(run(workshop, "rollback.yml", facts(), vllm_service_release=number), words)
    workshop.releases = NO_RELEASES


def test_an_earlier_release_that_is_forbidden_today_is_no_way_back(workshop: Workshop, first: Run) -> None:
    forbidden = release_of(first.kept[0], 1, vllm_service_environment={"NCCL_P2P_DISABLE": "0"})
    workshop.releases = store(forbidden)
    found = run(workshop, "stages.yml", facts())
    assert found.code == 0, found.output
    assert all(asked["previous"] is None for asked in found.asked_for)
    workshop.releases = NO_RELEASES
