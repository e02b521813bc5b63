"""What is read from model folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import frontdoor_model_facts as facts
import pytest


def _folder(tmp_path: Path, config: Any, name: str = "config.json") -> dict[str, Any]:
    (tmp_path / name).write_text(config if isinstance(config, str) else json.dumps(config))
    return dict(facts.model_facts(tmp_path))


@pytest.mark.parametrize(
    ("config", "heads", "context"),
    [
        ({"num_attention_heads": 9, "max_position_embeddings": 8192}, 9, 8192),
        ({"n_head": 12, "n_positions": 1024}, 12, 1024),
        ({"text_config": {"num_attention_heads": 16, "max_position_embeddings": 262144},
          "num_attention_heads": 4}, 16, 262144),
        ({"thinker_config": {"text_config": {"num_attention_heads": 28}}}, 28, None),
        ({"max_position_embeddings": 32768, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
          "original_max_position_embeddings": 32768}}, None, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
         None, 131072),
        ({"max_position_embeddings": 2048, "rope_scaling": {"type": "linear", "factor": 2}}, None, 4096),
        ({"max_position_embeddings": 2048, "rope_scaling": None}, None, 2048),
        ({"max_position_embeddings": "many", "num_attention_heads": True}, None, None),
    ],
)  # fmt: skip
def test_heads_and_context(tmp_path: Path, config: Any, heads: int | None, context: int | None) -> None:
    found = _folder(tmp_path, config)
    assert (found["attention_heads"], found["context_tokens"]) == (heads, context)
    assert found["config"] is True
    assert found["problem"] is None


def test_mistrals_own_config_counts(tmp_path: Path) -> None:
    assert _folder(tmp_path, {"n_heads": 32}, "params.json")["attention_heads"] == 32


@pytest.mark.parametrize("text", ["{", "[]", "null"])
def test_a_config_that_is_none_is_a_problem(tmp_path: Path, text: str) -> None:
    assert "config.json is not" in _folder(tmp_path, text)["problem"]


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    assert facts.model_facts(tmp_path)["config"] is False


def test_the_weights_that_vllm_loads_are_counted_once(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "blob").write_bytes(b"x" * 100)
    model = tmp_path / "model"
    model.mkdir()
    (model / "a.safetensors").symlink_to(store / "blob")
    (model / "b.safetensors").write_bytes(b"x" * 11)
    (model / "pytorch_model.bin").write_bytes(b"x" * 5000)
    (model / "broken.safetensors").symlink_to(store / "gone")
    assert facts.weights_bytes(model) == 111


def test_calibration_files_are_read_with_their_problems(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": 1}')
    (tmp_path / "b.json").write_text("{")
    found = facts.calibration_documents(tmp_path)
    assert found[str(tmp_path / "a.json")] == {"document": {"x": 1}}
    assert found[str(tmp_path / "b.json")] == {"problem": "it is not JSON"}
    assert facts.calibration_documents(tmp_path / "nowhere") == {}
