"""The page for clients names what there is."""

from __future__ import annotations

from pathlib import Path

from wake_router.lifecycle import Depth
from wake_router.surface import FORM_PATHS, HEALTH_PATH, JSON_PATHS, REALTIME

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "api.md").read_text()


def test_every_path_stands_in_the_page() -> None:
    for path in (*JSON_PATHS, *FORM_PATHS, REALTIME.path):
        assert f"`{path}`" in PAGE
    assert f"`GET {HEALTH_PATH}`" in PAGE


def test_every_depth_stands_in_the_page() -> None:
    for depth in Depth:
        assert f"`{depth.value}`" in PAGE
