import ast
import importlib.metadata
from pathlib import Path
from types import SimpleNamespace

import frontdoor_cpu_sleep
import pytest
from frontdoor_cpu_sleep import plugin

PACKAGE = Path(frontdoor_cpu_sleep.__file__).parent


def test_the_copied_folders_are_an_installed_plugin() -> None:
    (distribution,) = importlib.metadata.distributions(name="frontdoor-cpu-sleep", path=[str(PACKAGE.parent)])
    (entry_point,) = distribution.entry_points.select(group="vllm.general_plugins")
    assert entry_point.load() is plugin.register


def test_the_named_worker_exists() -> None:
    module, _, class_name = plugin.WORKER.rpartition(".")
    source = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py").read_text()
    assert class_name in {node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [("auto", plugin.WORKER), ("someone.elses.Worker", "someone.elses.Worker")],
)
def test_a_worker_named_by_the_user_is_respected(asked: str, chosen: str) -> None:
    config = SimpleNamespace(worker_cls=asked)
    plugin.choose_worker(config)
    assert config.worker_cls == chosen
