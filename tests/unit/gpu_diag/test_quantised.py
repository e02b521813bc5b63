"""Scales of quantised weights: which are they, and which are missing."""

from __future__ import annotations

import pytest
from gpu_diag.weights.quantised import find_scales

LAYOUTS: dict[str, tuple[dict[str, str], set[str], set[str]]] = {
    "GPTQ": (
        {"l.qweight": "I32", "l.qzeros": "I32", "l.scales": "F16", "norm.scale": "F32"},
        {"l.scales"},
        set(),
    ),
    "compressed-tensors": ({"l.weight_packed": "I32", "l.weight_scale": "BF16"}, {"l.weight_scale"}, set()),
    "fp8 in blocks": (
        {"l.weight": "F8_E4M3", "l.weight_scale_inv": "F32", "l.input_scale": "F32"},
        {"l.weight_scale_inv", "l.input_scale"},
        set(),
    ),
    "nvfp4": (
        {"l.weight": "U8", "l.weight_scale": "F8_E4M3", "l.weight_scale_2": "F32"},
        {"l.weight_scale", "l.weight_scale_2"},
        set(),
    ),
    "mxfp4": ({"e.gate_blocks": "U8", "e.gate_scales": "U8"}, set(), {"e.gate_scales"}),
    "fp8 without scales": ({"l.weight": "F8_E4M3", "m.weight": "F8_E4M3"}, set(), set()),
    "not quantised": ({"l.weight": "BF16", "l.scale": "BF16", "l.weight_scale": "BF16"}, set(), set()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_scales_of_each_layout(layout: str) -> None:
    dtypes, positive, e8m0 = LAYOUTS[layout]
    found = find_scales(dtypes)
    assert (set(found.positive), set(found.e8m0_bytes), list(found.missing)) == (positive, e8m0, [])


@pytest.mark.parametrize(
    ("dtypes", "missing"),
    [
        ({"l.qweight": "I32"}, ("l.qweight", "l.scales")),
        ({"l.weight_packed": "I32"}, ("l.weight_packed", "l.weight_scale")),
        ({"e.gate_blocks": "U8"}, ("e.gate_blocks", "e.gate_scales")),
        (
            {"x.0.w": "F8_E4M3", "x.0.w_scale": "F32", "x.1.w": "F8_E4M3"},
            ("x.1.w", "x.1.w_scale"),
        ),
        (
            {"a.weight": "F8_E4M3", "a.weight_scale": "F32", "b.weight": "F8_E4M3"},
            ("b.weight", "b.weight_scale"),
        ),
        (
            {
                "x.0.w": "U8",
                "x.0.w_scale": "F8_E4M3",
                "x.0.w_scale_2": "F32",
                "x.1.w": "U8",
                "x.1.w_scale": "F8_E4M3",
            },
            ("x.1.w", "x.1.w_scale_2"),
        ),
    ],
)
def test_a_scale_that_its_like_have_is_missing(dtypes: dict[str, str], missing: tuple[str, str]) -> None:
    assert find_scales(dtypes).missing == (missing,)
