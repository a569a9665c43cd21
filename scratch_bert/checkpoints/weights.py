"""The files of a checkpoint's weights: which they are, and the names, shapes and dtypes in them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from transformers.modeling_utils import load_state_dict

from scratch_bert_options.schema import check

from ..repository import find_file, one_line, read_json


WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
FILES = (WEIGHTS, INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")  # in the order of transformers
ADAPTER = "adapter_config.json"
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = ("position_ids", "token_type_ids")  # buffers that old checkpoints hold beside their weights
# In the index of sharded weights: the file of each weight, which is beside the index.
WeightMap = Annotated[dict[str, Annotated[str, Field(pattern=r"^\w[\w.-]*$")]], Field(min_length=1)]


def find_weights(name: str | Path, revision: str | None = None) -> list[Path]:
    """The files that `from_pretrained` reads for the directory or Hub repository `name`, downloaded if need be.

    Raises `OSError` if one is missing, and `ValueError` for a damaged index and for an adapter, whose base model
    `from_pretrained` would open instead.
    """
    if find_file(name, ADAPTER, revision):
        raise ValueError(f"{name} is an adapter ({ADAPTER}): merge it into its model with PEFT, and save that.")
    for file in FILES:
        if found := find_file(name, file, revision):
            parts = {file}
            if found.suffix == ".json":
                parts = set(check(WeightMap, read_json(found).get("weight_map"), f"{found}: weight_map").values())
            return [find_file(name, part, revision, required=True) for part in sorted(parts)]
    raise FileNotFoundError(f"{name} has no weights: neither {WEIGHTS} nor pytorch_model.bin.")


def read_shapes(files: Iterable[Path]) -> dict[str, torch.Tensor]:
    """The weights in these files by name, on the meta device: shapes and dtypes. No code in a pickle is run.

    Raises `ValueError` for a file that is damaged or holds anything else, and for quantized weights.
    """
    weights = {}
    for file in files:
        try:
            content = load_state_dict(file, map_location="meta")
            dtypes = {name: weight.dtype for name, weight in content.items()}
        except OSError:
            raise
        except Exception as error:  # a damaged pickle may make torch's reader raise anything
            reason = f"{type(error).__name__}: {one_line(error).partition('. ')[0]}"
            raise ValueError(
                f"{file} cannot be read: it is damaged, or holds something other than named tensors ({reason})."
            ) from None
        for name, dtype in dtypes.items():
            if dtype not in FLOATS and name.rpartition(".")[2] not in INTEGERS:
                raise ValueError(
                    f"{file}: {name} is {str(dtype).removeprefix('torch.')}. Quantized weights are not supported: "
                    "save the model in fp32, fp16 or bf16."
                )
        weights |= content
    return weights


def find_not_finite(weights: Iterable[tuple[str, torch.Tensor]]) -> str | None:
    """The name of the first weight with a NaN or an infinity."""
    return next((name for name, weight in weights if not weight.isfinite().all()), None)
