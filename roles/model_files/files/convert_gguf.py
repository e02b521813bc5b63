"""Turns a GGUF model into a folder that vLLM serves: bfloat16 safetensors, configuration, tokenizer.

Runs inside the engine's image, which carries transformers, gguf and accelerate. Usage:
convert_gguf.py SOURCE.gguf FOLDER
The same input gives the same bytes: no path, date or version of a library is written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

# What describes the model itself; transformers would add paths, versions and changing defaults.
_KEPT = (
    "attention_bias",
    "bos_token_id",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "max_position_embeddings",
    "mlp_bias",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "pad_token_id",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
    "unk_token_id",
    "vocab_size",
)


def configuration(model: Any) -> dict[str, Any]:
    """The model's configuration as vLLM reads it; without quantization, for the weights are plain now."""
    everything = model.config.to_dict()
    kept = {name: everything[name] for name in _KEPT if name in everything}
    return {**kept, "architectures": [type(model).__name__], "dtype": "bfloat16"}


def weights(model: Any) -> dict[str, torch.Tensor]:
    """The weights in bfloat16; a head that is tied to the embedding is the same tensor, not written twice."""
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    state: dict[str, torch.Tensor] = model.state_dict()
    return {
        name: tensor.to(torch.bfloat16).contiguous() for name, tensor in state.items() if name not in tied
    }


def main(source: Path, folder: Path) -> None:
    """Convert `source` into files in `folder`."""
    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16)
    save_file(weights(model), folder / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(configuration(model), indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    AutoTokenizer.from_pretrained(**place).save_pretrained(str(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
