"""What model folders and calibration files say: read on the box, standard library only, nothing decided.

The keys are those of Hugging Face configs (`config.json`) and of Mistral's (`params.json`), as vLLM 0.27.1 to
0.32.0 looks them up. Reading is bounded by size; waiting for a file system is the caller's matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_LARGEST_CONFIG_BYTES = 16 * 2**20
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_CONTEXT = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# Kinds of stretching whose factor is in max_position_embeddings already, or is applied beyond a length.
_FACTOR_CONTAINED = ("su", "longrope", "llama3", "mrope", "default")
# In the order in which vLLM looks for weights: the first kind that is there is what it loads.
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")

Json = dict[str, Any]


def model_facts(folder: Path) -> Json:
    """Facts on one folder: `config`, `attention_heads`, `context_tokens`, `weights_bytes`, `problem`."""
    config, problem = _config(folder)
    return {
        "config": config is not None or problem is not None,
        "attention_heads": None if config is None else attention_heads(config),
        "context_tokens": None if config is None else context_tokens(config),
        "weights_bytes": weights_bytes(folder),
        "problem": problem,
    }


def _config(folder: Path) -> tuple[Json | None, str | None]:
    path = next((folder / name for name in ("config.json", "params.json") if (folder / name).is_file()), None)
    if path is None:
        return None, None
    try:
        if path.stat().st_size > _LARGEST_CONFIG_BYTES:
            return None, f"{path} is larger than any config"
        config = json.loads(path.read_bytes())
    except OSError as error:
        return None, f"{path} can't be read: {error.strerror}"
    except (ValueError, RecursionError):
        return None, f"{path} is not JSON"
    return (config, None) if isinstance(config, dict) else (None, f"{path} is not a JSON object")


def _levels(config: Json) -> Iterator[Json]:
    """The part that describes the language model, then the whole: a vision model has heads of its own."""
    for name in _NESTED:
        nested = config.get(name)
        if isinstance(nested, dict):
            yield from _levels(nested)
    yield config


def _first_number(config: Json, keys: tuple[str, ...]) -> int | None:
    for level in _levels(config):
        for key in keys:
            value = level.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def attention_heads(config: Json) -> int | None:
    """The number of attention heads; None where the config doesn't say."""
    return _first_number(config, _HEADS)


def context_tokens(config: Json) -> int | None:
    """The longest context in tokens, with the stretching that the config itself declares; None: it doesn't
    say."""
    for level in _levels(config):
        found = [level[key] for key in _CONTEXT if isinstance(level.get(key), int) and level[key] > 0]
        if found:
            return int(min(found) * _stretching(level, min(found)))
    return None


def _stretching(level: Json, length: int) -> float:
    """By how much the model's own rope settings stretch its context."""
    scaling = level.get("rope_scaling") or level.get("rope_parameters")
    if not isinstance(scaling, Mapping):
        return 1.0
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    if kind is None or kind in _FACTOR_CONTAINED or not isinstance(factor, int | float) or factor <= 0:
        return 1.0
    original = scaling.get("original_max_position_embeddings")
    if kind == "yarn" and isinstance(original, int) and original > 0:
        return max(1.0, original * factor / length)
    return float(factor)


def weights_bytes(folder: Path) -> int:
    """The size of the files that vLLM would load, links followed; 0 where there are none."""
    for pattern in _WEIGHTS:
        sizes = [size for path in sorted(folder.glob(pattern)) if (size := _size(path))]
        if sizes:
            return sum(sizes)
    return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # a broken link: the check of the weights tells of it


def calibration_documents(folder: Path) -> dict[str, Json]:
    """By path, the document of each calibration file, or the problem that it has."""
    found: dict[str, Json] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            if path.stat().st_size > _LARGEST_CONFIG_BYTES:
                found[str(path)] = {"problem": "it is larger than any such file"}
            else:
                found[str(path)] = {"document": json.loads(path.read_bytes())}
        except OSError as error:
            found[str(path)] = {"problem": f"it can't be read: {error.strerror}"}
        except (ValueError, RecursionError):
            found[str(path)] = {"problem": "it is not JSON"}
    return found
