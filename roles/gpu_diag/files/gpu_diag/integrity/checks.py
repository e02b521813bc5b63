"""Copies and arithmetic on one device, through torch. Each check answers with what was wrong, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpu_diag.integrity.verdict import Finding

_COPY_WORDS = (1, 513, 262_147, 8 << 20)
_PATTERNS = (0x00, -1, 0x5555_5555_5555_5555, -0x5555_5555_5555_5556)
_MATRIX = 1024
_REPEATS = 4
_STRESS_WORDS = 8 << 20
_BITS_OF_RESULT = {"float32": 24, "bfloat16": 8, "float16": 11}


def check_device(torch: Any, target: Any, seed: int, stress_seconds: float) -> list[Finding]:
    """All checks on one device, the gentlest first. RuntimeErrors of torch go through to the caller."""
    generator = torch.Generator().manual_seed(seed)
    findings = check_copies(torch, target, generator)
    for name in _BITS_OF_RESULT:
        findings += check_matmul(torch, target, generator, name)
    return findings + check_stress(torch, target, generator, stress_seconds, time.monotonic)


def check_copies(torch: Any, target: Any, generator: Any) -> list[Finding]:
    """Host to device to host: patterns and random words at several sizes come back bit by bit."""
    findings = []
    for count in _COPY_WORDS:
        contents = [
            (f"{pattern & 0xFF:02x} patterns", torch.full((count,), pattern)) for pattern in _PATTERNS
        ]
        contents.append(("random words", torch.randint(-(1 << 62), 1 << 62, (count,), generator=generator)))
        for name, content in contents:
            device_copy = torch.empty_like(content, device=target).fill_(~content[0])
            device_copy.copy_(content)
            wrong = int((device_copy.cpu() != content).sum())
            if wrong:
                sentence = (
                    f"{wrong} of {count} words of {name} came back wrong from a copy through the device"
                )
                findings.append(Finding("copy_corrupt", sentence))
    return findings


def check_matmul(torch: Any, target: Any, generator: Any, dtype_name: str) -> list[Finding]:
    """A product against a float64 reference on the processor, and the same product again and again.

    The bound holds for any order of summation: n times the accumulator's rounding (float32) times the product
    of the absolute values, plus the rounding of the result to its own type.
    """
    dtype = getattr(torch, dtype_name)
    left, right = (torch.rand(_MATRIX, _MATRIX, generator=generator).sub_(0.5).to(dtype) for _ in range(2))
    exact = left.double() @ right.double()
    size = left.double().abs() @ right.double().abs()
    bound = _MATRIX * 2.0**-23 * size + 2.0 ** (1 - _BITS_OF_RESULT[dtype_name]) * exact.abs() + 1e-30
    _compute_exactly(torch)
    first = None
    findings = []
    for number in range(_REPEATS):
        result = (left.to(target) @ right.to(target)).cpu()
        # A comparison that NaN fails as well.
        wrong = int((~((result.double() - exact).abs() <= bound)).sum())
        if wrong:
            sentence = f"{wrong} of {_MATRIX**2} elements of a {dtype_name} product are out of bounds"
            findings.append(Finding("compute_wrong", sentence))
            break
        if first is not None and not torch.equal(first, result):
            sentence = f"the same {dtype_name} product came out otherwise at repetition {number + 1}"
            findings.append(Finding("compute_unstable", sentence))
            break
        first = result
    return findings


def _compute_exactly(torch: Any) -> None:
    """Sum in float32 as the bound assumes: no TF32, no partial sums in a smaller type (torch 2.x)."""
    settings = torch.backends.cuda.matmul
    settings.allow_tf32 = False
    settings.allow_bf16_reduced_precision_reduction = False
    settings.allow_fp16_reduced_precision_reduction = False


def check_stress(
    torch: Any, target: Any, generator: Any, seconds: float, clock: Callable[[], float]
) -> list[Finding]:
    """Copies inside the device for some seconds; at the end every word is still there."""
    content = torch.randint(-(1 << 62), 1 << 62, (_STRESS_WORDS,), generator=generator)
    one = content.to(target)
    other = torch.empty_like(one)
    end, rounds = clock() + seconds, 0
    while rounds == 0 or clock() < end:
        other.copy_(one)
        one.zero_()
        one.copy_(other)
        rounds += 1
        if target.type == "cuda":
            torch.cuda.synchronize(target)
    wrong = int((one.cpu() != content).sum())
    if not wrong:
        return []
    return [
        Finding(
            "memory_corrupt", f"{wrong} of {_STRESS_WORDS} words changed in {rounds} copies on the device"
        )
    ]
