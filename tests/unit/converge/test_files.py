"""The module's dealings with files, on real ones."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROLE = Path(__file__).parents[3] / "roles/vllm_service"


@pytest.fixture(scope="module")
def module() -> Any:
    """The module, imported the way Ansible's own loader lets it find its module_utils."""
    path = ROLE / "library/vllm_service_converge.py"
    spec = importlib.util.spec_from_file_location("vllm_service_converge", path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def test_writing_replaces_at_once_and_leaves_nothing_beside(module: Any, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    module.write_atomically(path, b"one", 0o640, os.getuid(), os.getgid())
    with path.open("rb") as reader:
        module.write_atomically(path, b"two", 0o600, os.getuid(), os.getgid())
        assert reader.read() == b"one"
    assert (path.read_bytes(), path.stat().st_mode & 0o7777) == (b"two", 0o600)
    assert os.listdir(path.parent) == ["file"]  # noqa: PTH208 -- hidden files count


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside(module: Any, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "kept").touch()
    with pytest.raises(OSError, match="directory"):
        module.write_atomically(target, b"x", 0o600, os.getuid(), os.getgid())
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_path_status(module: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert module.path_status(path, follow=False).kind == "missing"
    assert module.path_status(path / "below", follow=False).kind == "missing"
    path.write_bytes(b"abc")
    path.chmod(0o604)
    seen = module.path_status(path, follow=False)
    assert (seen.kind, seen.mode, seen.size, seen.digest) == ("file", 0o604, 3, module.sha256(b"abc"))
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert module.path_status(link, follow=False).kind == "link"
    assert module.path_status(link, follow=True).kind == "directory"
    os.mkfifo(tmp_path / "fifo")
    assert module.path_status(tmp_path / "fifo", follow=False).kind == "other"


def test_the_lock_names_its_holder_and_says_what_it_made(module: Any, tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    with module.deploy_lock(root, check_mode=False) as made:
        assert made == {str(tmp_path / "a"), str(root)}
        holder = json.loads((root / ".deploy.lock").read_text())
        assert holder["pid"] == os.getpid()
        expected = re.escape(f"process {os.getpid()} of user {holder['user']} since {holder['since']}")
        for check_mode in (False, True):
            with (
                pytest.raises(module.ConvergeError, match=expected),
                module.deploy_lock(root, check_mode=check_mode),
            ):
                pass
    with module.deploy_lock(root, check_mode=False) as made:
        assert made == frozenset()


def test_check_mode_makes_no_lock(module: Any, tmp_path: Path) -> None:
    with module.deploy_lock(tmp_path / "root", check_mode=True):
        assert list(tmp_path.iterdir()) == []


def test_a_lock_without_a_name_in_it(module: Any, tmp_path: Path) -> None:
    with (tmp_path / ".deploy.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with (
            pytest.raises(module.ConvergeError, match="has not said yet who it is"),
            module.deploy_lock(tmp_path, check_mode=False),
        ):
            pass


def test_names_and_numbers(module: Any) -> None:
    assert (module.user_id("root", "x"), module.group_id("root", "x"), module.user_id("10810", "x")) == (
        0,
        0,
        10810,
    )
    assert module.octal_mode("0640", "x") == 0o640
    for wrong in ("640x", "", "0o640", "99999"):
        with pytest.raises(module.ConvergeError, match="file x: its mode"):
            module.octal_mode(wrong, "file x")
    with pytest.raises(module.ConvergeError, match="file x: its group no-such is no group"):
        module.group_id("no-such", "file x")


def test_documentation_and_options_agree(module: Any) -> None:
    documented = yaml.safe_load(module.DOCUMENTATION)["options"]
    spec = module.argument_spec()
    assert documented.keys() == spec.keys()
    for name, option in spec.items():
        assert documented[name].get("type") == option["type"], name
        assert documented[name].get("default") == option.get("default"), name
        assert documented[name].get("required", False) == option.get("required", False), name
        below = documented[name].get("suboptions", {})
        assert below.keys() == option.get("options", {}).keys(), name
        for sub, suboption in option.get("options", {}).items():
            assert below[sub].get("default") == suboption.get("default"), (name, sub)
    assert yaml.safe_load(module.EXAMPLES) and yaml.safe_load(module.RETURN)
