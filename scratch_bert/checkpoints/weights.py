"""The files of a checkpoint's weights: which they are, and the names, shapes and dtypes in them."""

import pickle
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers.modeling_utils import load_state_dict

from ..repository import find_file, one_line, read_json


WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
FILES = (WEIGHTS, INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")  # in the order of transformers
ADAPTER = "adapter_config.json"
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = ("position_ids", "token_type_ids")  # buffers that old checkpoints hold beside their weights
# What the readers of safetensors and torch raise for files that are damaged or no weights. A pickle may ask torch's reader for
# anything that tensors need: with arguments that make no sense, that raises whatever it raises.
UNREADABLE = (SafetensorError, pickle.UnpicklingError, struct.error, RuntimeError, EOFError, LookupError, ValueError)
UNREADABLE += (TypeError, AttributeError, ArithmeticError, AssertionError, MemoryError)


def find_weights(name: str | Path, revision: str | None = None) -> tuple[list[Path], dict[str, str]]:
    """The files that `from_pretrained` reads for the directory or Hub repository `name`, downloaded if need be, and
    the `weight_map` of their index, empty if there is none.

    Raises `OSError` if there are none or a part is missing, and `ValueError` for an index that does not name the
    parts, and for an adapter, beside which `from_pretrained` would open another model.
    """
    if find_file(name, ADAPTER, revision):
        raise ValueError(f"{name} is an adapter ({ADAPTER}): merge it into its model with PEFT, and save that.")
    for file in FILES:
        found = find_file(name, file, revision)
        if found:
            weight_map = read_index(found) if found.suffix == ".json" else {}
            paths = []
            for part in sorted(set(weight_map.values())) or [file]:
                path = find_file(name, part, revision)
                if path is None:
                    raise FileNotFoundError(f"{name} has no {part}, which its {file} names: save the model again.")
                paths.append(path)
            return paths, weight_map
    raise FileNotFoundError(f"{name} has no weights: neither {WEIGHTS} nor pytorch_model.bin.")


def read_index(file: Path) -> dict[str, str]:
    """The name of the file of each sharded weight. Raises `ValueError` if they are not those of files beside the
    index."""
    weight_map = read_json(file).get("weight_map")
    if not (
        isinstance(weight_map, dict) and weight_map and all(isinstance(part, str) for part in weight_map.values())
    ):
        raise ValueError(f"{file} has no weight_map that names the file of each weight: save the model again.")
    for part in weight_map.values():
        if part != Path(part).name or "\\" in part:
            raise ValueError(f"{file} names {part!r}, which is not a file beside it: save the model again.")
    return weight_map


def read_shapes(files: Iterable[Path], weight_map: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """The weights in these files by name, on the meta device: shapes and dtypes. No code in a pickle is run.

    Raises `ValueError` that names the file if it is damaged or holds anything else, for quantized weights, and for a
    weight that two files hold, or another file than the `weight_map` says: the one to load would be unclear.
    """
    weights, holders = {}, dict(weight_map)
    for file in files:
        with file.open("rb") as start:
            if start.read(8) == b"version ":
                raise ValueError(f"{file} is a Git LFS pointer: fetch the file with git lfs pull.")
        try:
            content = load_state_dict(file, map_location="meta")
        except pickle.UnpicklingError:
            raise ValueError(
                f"{file} cannot be read: it is damaged, or holds more than tensors, and no code in it is run."
            ) from None
        except UNREADABLE as error:
            reason = f"{type(error).__name__}: {one_line(error).partition('. ')[0]}"
            raise ValueError(f"{file} cannot be read, it is truncated or damaged ({reason}).") from None
        if not (isinstance(content, dict) and all(isinstance(weight, torch.Tensor) for weight in content.values())):
            raise ValueError(f"{file} does not hold the weights of a model: tensors by their names.")
        for name, weight in content.items():
            if weight.dtype not in FLOATS and name.rpartition(".")[2] not in INTEGERS:
                dtype = str(weight.dtype).removeprefix("torch.")
                raise ValueError(
                    f"{file}: {name} is {dtype}. Quantized weights are not supported: save the model in fp32, fp16 or bf16."
                )
            if (other := holders.setdefault(name, file.name)) != file.name:
                raise ValueError(f"{file} holds {name}, which {other} holds or should hold: save the model again.")
        weights |= content
    return weights


def find_not_finite(weights: Iterable[tuple[str, torch.Tensor]]) -> str | None:
    """The name of the first weight with a NaN or an infinity."""
    return next((name for name, weight in weights if not weight.isfinite().all()), None)
