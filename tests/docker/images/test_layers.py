"""Images in layers, made by the role for real: with the router's locked wheels and a small program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docker.images.conftest import HOST, ROOT, SCRIPT, Run, docker

TAG = "images-test/program:1"


def play(folder: Path, recipe: dict[str, Any], *options: str, temporary: Path | None = None) -> str:
    """Run the role's entry `recipe.yml` from another playbook; gives back what ansible-playbook printed."""
    folder.mkdir(exist_ok=True)
    book = folder / "play.yml"
    tasks = [{"ansible.builtin.include_role": {"name": "engine_image", "tasks_from": "recipe.yml"}}]
    document = [
        {"hosts": "all", "gather_facts": False, "vars": {"engine_image_recipe": recipe}, "tasks": tasks}
    ]
    book.write_text(yaml.safe_dump(document))
    command = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        "-i",
        "localhost,",
        "-c",
        "local",
        str(book),
    ]
    command += [
        "-e",
        f"engine_image_docker_host={HOST}",
        "-e",
        f"ansible_python_interpreter={sys.executable}",
        *options,
    ]
    environment = {**os.environ, **({"TMPDIR": str(temporary)} if temporary else {})}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def recipe(source: Path, base: str) -> dict[str, Any]:
    return {
        "tag": TAG,
        "base": {"image": base},
        "layers": [
            {"repository": "images-test/wheels", "lock": str(ROOT / "locks/router.txt")},
            {
                "repository": "images-test/program",
                "files": [{"src": str(source), "dest": "/opt/program/dummy"}],
                "labels": {"note": "a $1 note"},
                "environment": {"PYTHONPATH": "/opt/program"},
                "user": "10810:10810",
                "entrypoint": ["python3", "-m", "dummy"],
            },
        ],
    }


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, base: str) -> Any:
    """The image made once, and the folder of its source."""
    folder = tmp_path_factory.mktemp("program")
    source = folder / "dummy"
    source.mkdir()
    (source / "__init__.py").write_text("")
    (source / "__main__.py").write_text(
        "import os, aiohttp, uvloop\nprint(os.getuid(), aiohttp.__name__, uvloop.__name__)\n"
    )
    yield folder, play(folder, recipe(source, base))
    for name in ("images-test/program", "images-test/wheels"):
        if ids := docker("image", "ls", "--quiet", name).split():
            docker("image", "rm", "--force", *set(ids))


def inspect(reference: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(docker("image", "inspect", reference))[0]
    return found


def test_the_program_runs_as_its_user_with_the_locked_wheels(program: Any) -> None:
    assert docker("run", "--rm", "--network", "none", "--read-only", TAG) == "10810 aiohttp uvloop"
    assert inspect(TAG)["Config"]["Labels"]["note"] == "a $1 note"
    assert inspect("images-test/wheels:" + tag_of("images-test/wheels"))["Config"]["Entrypoint"] is None


def tag_of(repository: str) -> str:
    return docker("image", "ls", "--format", "{{.Tag}}", repository).splitlines()[0]


def test_no_wheel_and_no_script_stays_in_the_image(program: Any) -> None:
    find = ("find", "/", "-xdev", "(", "-name", "*.whl", "-o", "-name", "prepare_layer.py", ")")
    left = docker("run", "--rm", "--network", "none", "--user", "0", "--entrypoint", "", TAG, *find)
    # Debian's own venv module brings pip as a wheel.
    assert [path for path in left.splitlines() if not path.startswith("/usr/share/python-wheels/")] == []


def test_no_container_is_left_behind(program: Any) -> None:
    assert docker("ps", "--all", "--quiet", "--filter", "name=vllm-frontdoor-building") == ""


def test_a_second_run_changes_nothing(program: Any, base: str) -> None:
    folder, first = program
    assert "changed=0 " not in first
    assert "changed=0 " in play(folder, recipe(folder / "dummy", base))


def test_a_changed_program_makes_its_layer_anew_and_moves_the_name(program: Any, base: str) -> None:
    folder, _ = program
    before = inspect(TAG)
    (folder / "dummy/__main__.py").write_text("print('changed')\n")
    predicted = play(folder, recipe(folder / "dummy", base), "--check")
    said = play(folder, recipe(folder / "dummy", base))
    assert "changed=2 " in predicted and "changed=2 " in said
    after = inspect(TAG)
    assert docker("run", "--rm", "--network", "none", TAG) == "changed"
    assert after["RootFS"]["Layers"][:-1] == before["RootFS"]["Layers"][:-1]
    assert after["RootFS"]["Layers"][-1] != before["RootFS"]["Layers"][-1]


def test_on_another_machine_the_input_is_brought_there_and_removed_again(
    program: Any, base: str, tmp_path: Path
) -> None:
    folder, _ = program
    temporary = tmp_path / "box"
    temporary.mkdir()
    described = recipe(folder / "dummy", base)
    described["layers"][0]["only"] = ["idna"]
    described["layers"][1]["labels"] = {"brought": "yes"}
    elsewhere = json.dumps({"__engine_image_on_this_machine": False})
    said = play(folder, described, "-e", elsewhere, temporary=temporary)
    assert "Copy the wheels" in said and "Copy the sources" in said
    assert inspect(TAG)["Config"]["Labels"]["brought"] == "yes"
    modules = ("run", "--rm", "--network", "none", "--entrypoint", "", TAG, "python3", "-c")
    assert docker(*modules, "import idna, dummy; print(dummy.__file__)") == "/opt/program/dummy/__init__.py"
    assert list(temporary.iterdir()) == []


def test_a_layer_that_cannot_be_made_is_a_sentence_and_leaves_nothing(
    run: Run, base: str, tmp_path: Path
) -> None:
    wheel = {"file": "none.whl", "name": "none-such", "version": "1", "sha256s": ["0" * 64]}
    answer = run(
        "engine_image_layer",
        docker_host=HOST,
        reference="images-test/broken:1",
        parent=base,
        script=SCRIPT,
        wheels=[wheel],
        wheels_folder=str(tmp_path),
    )
    assert answer["failed"]
    assert "Making the image images-test/broken:1" in answer["msg"]
    assert "none-such" in answer["msg"]
    assert docker("ps", "--all", "--quiet", "--filter", "name=vllm-frontdoor-building-1") == ""
    assert docker("image", "ls", "--quiet", "images-test/broken") == ""


def test_a_bootstrap_that_fails_is_a_sentence_and_leaves_no_image(run: Run) -> None:
    answer = run(
        "engine_image_base",
        docker_host=HOST,
        reference="images-test/base:broken",
        suite="nosuchsuite",
        mirror="http://127.0.0.1:9/debian",
    )
    assert answer["failed"]
    assert "Bootstrapping Debian nosuchsuite failed" in answer["msg"]
    assert docker("image", "ls", "--all", "--quiet", "--filter", "label=vllm-frontdoor.content=broken") == ""


def test_a_daemon_that_is_not_there_is_a_sentence_and_in_check_mode_a_prediction(run: Run, base: str) -> None:
    nowhere = {
        "docker_host": "unix:///nonexistent/docker.sock",
        "reference": "images-test/x:1",
        "parent": base,
    }
    answer = run("engine_image_layer", **nowhere, script=SCRIPT)
    assert answer["failed"]
    assert run("engine_image_layer", check_mode=True, **nowhere, script=SCRIPT)["changed"]
