"""`./box rehearse --purge` removes all that a rehearsal made: state, models and images."""

from __future__ import annotations

from pathlib import Path

from rehearsal_box import REPOSITORY, ROOT, STATE, Box, container_ids, docker


def test_purge_leaves_nothing() -> None:
    assert Box(REPOSITORY).run("rehearse", "--purge").status == 0
    assert not ROOT.exists()
    assert not STATE.exists()
    assert container_ids() == {}
    assert docker("image", "ls", "--quiet", "vllm-frontdoor/*") == ""
    models = Path("/var/lib/vllm-frontdoor/models")
    assert not models.exists() or not list(models.glob("[!.]*"))
