"""Image chains: names by content, what has to be built, what is committed."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.engine_image_chain import Step, chain, commit_changes, to_build

BASE = {"image": "", "suite": "bookworm", "packages": ["python3", "g++"]}
LAYERS: list[dict[str, Any]] = [
    {"repository": "x/wheels", "lock": "a.txt"},
    {"repository": "x/engine", "lock": "a.txt", "labels": {"vllm-frontdoor.device": "cpu"}},
]
INPUTS: list[dict[str, Any]] = [{"lock": "1", "files": []}, {"lock": "2", "files": []}]


def references(base: Any = BASE, layers: Any = LAYERS, inputs: Any = INPUTS, script: str = "s") -> list[str]:
    return [step.reference for step in chain(base, layers, inputs, script)]


def same_from_below(first: list[str], second: list[str]) -> int:
    """How many images from the base upwards two chains share."""
    return next((n for n, (a, b) in enumerate(zip(first, second, strict=True)) if a != b), len(first))


def test_each_step_stands_on_the_one_before() -> None:
    steps = chain(BASE, LAYERS, INPUTS, "s")
    assert [step.parent for step in steps] == ["", *(step.reference for step in steps[:-1])]
    assert [step.position for step in steps] == [None, 0, 1]
    assert [step.kind for step in steps] == ["bootstrapped", "layer", "layer"]


@pytest.mark.parametrize(
    ("shared", "change"),
    [
        (3, {}),
        (3, {"base": {**BASE, "packages": ["g++", "python3"]}}),
        (3, {"base": {**BASE, "mirror": "elsewhere"}}),
        (3, {"layers": [{**LAYERS[0], "lock": "elsewhere/a.txt"}, LAYERS[1]]}),
        (2, {"inputs": [INPUTS[0], {"lock": "3", "files": []}]}),
        (2, {"inputs": [INPUTS[0], {"lock": "2", "files": ["tree"]}]}),
        (2, {"layers": [LAYERS[0], {**LAYERS[1], "labels": {"vllm-frontdoor.device": "cuda"}}]}),
        (2, {"layers": [LAYERS[0], {**LAYERS[1], "user": "10810"}]}),
        (1, {"inputs": [{"lock": "3", "files": []}, INPUTS[1]]}),
        (1, {"script": "another program"}),
        (0, {"base": {**BASE, "suite": "trixie"}}),
        (0, {"base": {**BASE, "packages": ["python3"]}}),
        (0, {"base": {"image": "python:3.11"}}),
    ],
)
def test_a_change_renames_the_images_from_there_upwards(shared: int, change: dict[str, Any]) -> None:
    assert same_from_below(references(), references(**change)) == shared


def test_a_named_base_is_pulled_under_its_own_name() -> None:
    step = chain({"image": "python:3.11"}, [], [], "s")[0]
    assert (step.kind, step.reference) == ("pulled", "python:3.11")


def test_only_what_lies_above_the_highest_present_image_is_built() -> None:
    steps = chain(BASE, LAYERS, INPUTS, "s")
    names = [step.reference for step in steps]
    assert to_build(steps, []) == steps
    assert to_build(steps, [names[0]]) == steps[1:]
    assert to_build(steps, [names[1]]) == steps[2:]
    assert to_build(steps, [names[2]]) == []


def test_a_commit_never_keeps_the_command_or_user_that_filled_the_layer() -> None:
    changes = commit_changes({}, "key")
    assert changes == ['LABEL vllm-frontdoor.content="key"', "USER 0", 'CMD ["python3"]']


def test_values_in_a_commit_are_quoted_and_not_expanded() -> None:
    layer = {
        "labels": {"note": 'say "hi"'},
        "environment": {"PATH_TO": "$HOME/x y"},
        "user": "10810:10810",
        "workdir": "/opt",
        "entrypoint": ["python3", "-m", "wake_router"],
        "cmd": ["--help"],
    }
    assert commit_changes(layer, "k") == [
        'LABEL note="say \\"hi\\""',
        'LABEL vllm-frontdoor.content="k"',
        'ENV PATH_TO="\\$HOME/x y"',
        "USER 10810:10810",
        "WORKDIR /opt",
        'ENTRYPOINT ["python3", "-m", "wake_router"]',
        'CMD ["--help"]',
    ]


def test_a_step_survives_the_way_through_ansible() -> None:
    step = Step("a:1", "b:1", 0, "layer")
    assert Step(**step.document()) == step
