"""Which tensors are scales of quantised weights, and which quantised weights lack theirs.

Layouts known: GPTQ and AWQ (``qweight``, ``scales``), compressed-tensors (``weight_packed``,
``weight_scale``), FP8 of vLLM, DeepSeek and ModelOpt (``weight_scale``, ``weight_scale_inv``,
``weight_scale_2``), MXFP4 (``_blocks``, ``_scales`` with e8m0 in bytes).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_EIGHT_BIT_FLOATS = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_QUANTISED_DTYPES = (*_EIGHT_BIT_FLOATS, "I8", "U8", "F4", "F6_E2M3", "F6_E3M2")
# Suffix of a packed weight, and of the scale that it can't do without.
_PACKED = {".qweight": ".scales", ".weight_packed": ".weight_scale"}
_SCALES_OF_A_WEIGHT = ("_scale", "_scale_inv", "_scale_2", "_global_scale")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Scales:
    """Names: scales that must be positive, scales of bytes that are e8m0, and (weight, missing scale)."""

    positive: frozenset[str]
    e8m0_bytes: frozenset[str]
    missing: tuple[tuple[str, str], ...]


def find_scales(dtypes: Mapping[str, str]) -> Scales:
    """The scales among all tensors of a model, given the dtype of each tensor by name."""
    positive: set[str] = set()
    e8m0: set[str] = set()
    missing: list[tuple[str, str]] = []
    for name, dtype in dtypes.items():
        for scale, required in _packed_scales(name, dtype):
            if scale not in dtypes:
                missing.extend([(name, scale)] if required else [])
            elif dtypes[scale] == "U8":
                e8m0.add(scale)
            else:
                positive.add(scale)
    owned = {
        name: _scales_beside(name, dtypes) for name, dtype in dtypes.items() if _may_have_scales(name, dtype)
    }
    positive.update(name + suffix for name, suffixes in owned.items() for suffix in suffixes)
    positive.update(scale for name in owned if (scale := _input_scale(name)) in dtypes and owned[name])
    missing.extend(_inconsistent(owned, dtypes))
    return Scales(frozenset(positive - e8m0), frozenset(e8m0), tuple(missing))


def _packed_scales(name: str, dtype: str) -> Iterable[tuple[str, bool]]:
    for suffix, scale in _PACKED.items():
        if name.endswith(suffix):
            yield name.removesuffix(suffix) + scale, True
    if name.endswith("_blocks") and dtype == "U8":
        yield name.removesuffix("_blocks") + "_scales", True


def _may_have_scales(name: str, dtype: str) -> bool:
    return dtype in _QUANTISED_DTYPES and not name.endswith((*_PACKED, "_blocks", *_SCALES_OF_A_WEIGHT))


def _scales_beside(name: str, dtypes: Mapping[str, str]) -> frozenset[str]:
    return frozenset(suffix for suffix in _SCALES_OF_A_WEIGHT if name + suffix in dtypes)


def _input_scale(name: str) -> str:
    return name.removesuffix(".weight") + ".input_scale"


def _inconsistent(
    owned: Mapping[str, frozenset[str]], dtypes: Mapping[str, str]
) -> Iterable[tuple[str, str]]:
    """Weights without a scale that their like have: the same layer's in other blocks, or all of that dtype.

    A model whose 8-bit weights have no scales at all is whole: the values are then taken as they are.
    """
    by_family: dict[tuple[str, str], set[str]] = {}
    by_dtype: dict[str, set[str]] = {}
    for name, suffixes in owned.items():
        by_family.setdefault(_family(name, dtypes[name]), set()).update(suffixes)
        if dtypes[name] in _EIGHT_BIT_FLOATS:
            by_dtype.setdefault(dtypes[name], set()).update(suffixes)
    for name, suffixes in owned.items():
        lacking = by_family[_family(name, dtypes[name])] - suffixes
        if not lacking and not suffixes:
            lacking = by_dtype.get(dtypes[name], set())
        if lacking:
            yield name, name + min(lacking)


def _family(name: str, dtype: str) -> tuple[str, str]:
    return dtype, _DIGITS.sub("#", name)
