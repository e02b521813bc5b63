"""What the tests of gpu_diag share: the role's module_utils as Ansible shows them, and files of weights."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import ansible.module_utils
import pytest

ROLE = Path(__file__).resolve().parents[3] / "roles" / "gpu_diag"

# Ansible merges a role's module_utils into this package; so do the tests.
ansible.module_utils.__path__.append(str(ROLE / "module_utils"))

Content = Mapping[str, tuple[str, list[int], bytes]]
WriteSafetensors = Callable[[Path, Content], Path]


def safetensors_bytes(content: Content) -> bytes:
    """A safetensors file: (dtype, shape, bytes) by name, laid out in the order given."""
    header: dict[str, object] = {}
    position = 0
    for name, (dtype, shape, data) in content.items():
        offsets = [position, position + len(data)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        position += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in content.values())


@pytest.fixture
def write_safetensors() -> WriteSafetensors:
    """Writes a safetensors file and returns its path."""

    def write(path: Path, content: Content) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(safetensors_bytes(content))
        return path

    return write


@pytest.fixture
def fixtures() -> Path:
    """The folder of recorded outputs."""
    return Path(__file__).parent / "fixtures"


@pytest.fixture
def role() -> Path:
    """The role's folder."""
    return ROLE
