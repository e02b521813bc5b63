"""Putting the package onto the box, and what the action plugin carries."""

from __future__ import annotations

from pathlib import Path

import ansible.module_utils.gpu_diag_install as gpu_diag_install

FILES = {"script.py": "print()\n", "gpu_diag/__init__.py": "", "gpu_diag/cli.py": "x = 1\n"}


def test_a_fresh_folder_a_repair_and_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "diag"
    changes = gpu_diag_install.plan_changes(folder, FILES)
    assert [change.sentence for change in changes] == [
        f"file {folder}/gpu_diag/__init__.py: missing, created",
        f"file {folder}/gpu_diag/cli.py: missing, created",
        f"file {folder}/script.py: missing, created",
    ]
    assert not folder.exists()
    gpu_diag_install.install(folder, FILES, changes)
    assert gpu_diag_install.plan_changes(folder, FILES) == []
    assert (folder / "script.py").stat().st_mode & 0o777 == 0o755

    (folder / "gpu_diag" / "cli.py").write_text("x = 2\n")
    (folder / "gpu_diag" / "old.py").touch()
    (folder / "script.py").chmod(0o644)
    changes = gpu_diag_install.plan_changes(folder, FILES)
    assert [change.sentence for change in changes] == [
        f"file {folder}/gpu_diag/cli.py: content differs, rewritten",
        f"file {folder}/script.py: mode differs, rewritten",
        f"file {folder}/gpu_diag/old.py: not part of the package, removed",
    ]
    gpu_diag_install.install(folder, FILES, changes)
    assert gpu_diag_install.plan_changes(folder, FILES) == []
    assert sorted(path.name for path in folder.rglob("*")) == [
        "__init__.py",
        "cli.py",
        "gpu_diag",
        "script.py",
    ]
