"""A model split over two devices: through the gate, on evidence made for it, answering as when whole."""

from __future__ import annotations

import json
import math
import operator
import re
import subprocess
from dataclasses import dataclass

import pytest
from asking import Asker, arguments, name_capital, official_client, renewed, services
from rehearsal_box import STATE, Deployed, Run, container_ids, container_name, docker, service_status

SPLIT = ("-e", services("embed", devices=["left", "right"], tensor_parallel=2))
SENTENCES = ["A cat sits on the mat.", "A kitten rests on the rug.", "Quarterly revenue grew."]

Vector = list[float]


def cosine(left: Vector, right: Vector) -> float:
    return float(sum(map(operator.mul, left, right)) / math.hypot(*left) / math.hypot(*right))


def vectors() -> list[Vector]:
    data = official_client().embeddings.create(model="minilm", input=SENTENCES).data
    return [item.embedding for item in data]


@dataclass(frozen=True)
class Split:
    """What the embedding service answered when it was whole, and the run that split it."""

    whole: list[Vector]
    run: Run
    evidence_before: set[str]


def log(container: str) -> str:
    """What the container printed, on either stream."""
    command = ["docker", "logs", container]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    ).stdout


def control_arms() -> set[str]:
    """The evidence about the path through the host's memory."""
    return {path.name for path in (STATE / "evidence" / "control").glob("*.json")}


@pytest.fixture(scope="module")
def split(deployed: Deployed) -> Split:
    """The embedding service on both devices; the left one it shares with the other service."""
    deployed.box.succeed("rehearse")
    whole, evidence, before = vectors(), control_arms(), container_ids()
    with Asker(name_capital, pause_seconds=0.5) as questions:
        run = deployed.box.succeed("rehearse", *SPLIT)
        questions.wait_for_another()
    assert questions.failures == []
    assert renewed(before) == {container_name("embed")}
    return Split(whole, run, evidence)


def test_it_is_deployed_on_evidence_of_its_own(split: Split) -> None:
    (made,) = control_arms() - split.evidence_before
    document = json.loads((STATE / "evidence" / "control" / made).read_text())
    assert document["verdict"] == "clean"
    assert document["details"]["control_words"] > 0
    assert len(document["details"]["devices"]) == 2


def test_the_engine_runs_in_two_parts(split: Split) -> None:
    given = arguments(container_name("embed"))
    assert given[given.index("--tensor-parallel-size") + 1] == "2"
    assert docker("inspect", "--format", "{{.HostConfig.CpusetCpus}}", container_name("embed")) == "0,1"
    # vLLM 0.27.1 says where it puts a rank: "rank 0 in world size 2 is assigned as DP rank 0, ... TP rank 0".
    sizes = re.findall(r"rank \d+ in world size (\d+) is assigned as", log(container_name("embed")))
    assert set(sizes) == {"2"}


def test_it_answers_as_when_it_was_whole(split: Split) -> None:
    parted = vectors()
    for one, other in zip(split.whole, parted, strict=True):
        assert cosine(one, other) > 0.999
    cat, kitten, revenue = parted
    assert cosine(cat, kitten) > 0.5 > 0.2 > abs(cosine(cat, revenue))
    assert service_status("embed")["conditions"] == []


def test_a_second_run_changes_nothing(deployed: Deployed, split: Split) -> None:
    before, evidence = container_ids(), control_arms()
    assert deployed.box.succeed("rehearse", *SPLIT).changed == 0
    assert (container_ids(), control_arms()) == (before, evidence)


def test_it_becomes_whole_again(deployed: Deployed, split: Split) -> None:
    before = container_ids()
    deployed.box.succeed("rehearse")
    assert renewed(before) == {container_name("embed")}
    for one, other in zip(split.whole, vectors(), strict=True):
        assert cosine(one, other) > 0.999
    assert deployed.box.succeed("rehearse").changed == 0
