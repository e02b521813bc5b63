"""`./box rehearse --purge` removes all that a rehearsal made: state, models and images."""

from __future__ import annotations

from pathlib import Path

from rehearsal_box import REPOSITORY, ROOT, STATE, Box, container_ids, docker

MODELS = Path("/var/lib/vllm-frontdoor/models")


def images() -> str:
    return docker("image", "ls", "--quiet", "vllm-frontdoor/*")


def models() -> list[Path]:
    return list(MODELS.glob("[!.]*"))


def test_purge_leaves_nothing() -> None:
    box = Box(REPOSITORY)
    if not ROOT.exists():
        # The end-to-end tests leave one behind, stopped; without them there is nothing to remove yet.
        box.succeed("rehearse")
    assert STATE.exists() and images() and models()
    box.succeed("rehearse", "--purge")
    assert not ROOT.exists()
    assert not STATE.exists()
    assert container_ids() == {}
    assert (images(), models()) == ("", [])
