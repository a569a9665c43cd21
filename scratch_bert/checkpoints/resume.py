"""What may change when a run is resumed: options, but neither data nor architecture."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from scratch_bert_options.schema import check

from ..logs import logger
from ..model.configuration_scratch_bert import ARCHITECTURE_FIELDS, ScratchBertConfig
from ..repository import RUN_FILE, read_json
from .open import find_new_weights, first_name, load_config
from .weights import INDEX, WEIGHTS


def read_record(checkpoint: str | Path) -> dict[str, Any]:
    """All that is recorded of the run in a directory or checkpoint; empty if there is nothing that can be read."""
    try:
        saved = check(dict[str, dict], read_json(Path(checkpoint, RUN_FILE)))
        return saved["fixed"] | saved["options"]
    except (FileNotFoundError, ValueError, KeyError):
        return {}


def has_one_seed(checkpoint: str | Path) -> bool:
    """Whether the run in a directory or checkpoint is of an earlier version, whose `seed` also drew the held-out part."""
    record = read_record(checkpoint)
    return bool(record) and "split_seed" not in record


def check_same_run(record: dict[str, dict], checkpoint: str, also_fixed: Collection[str] = ()) -> None:
    """Compare the record of a run with that of the run that saved `checkpoint`.

    Raises `ValueError` for a difference in `record["fixed"]` or in an option that is `also_fixed`. Differences in the
    other `record["options"]` are logged: the resumed run uses its own.
    """
    saved, current = read_record(checkpoint), record["fixed"] | record["options"]
    if not saved:
        logger.warning(f"{checkpoint} has no {RUN_FILE} that can be read: make sure that seed and text are the same")
        return
    changed = {name: value for name, value in current.items() if saved.get(name, value) != value}
    for name, value in changed.items():
        if name in record["fixed"] or name in also_fixed:
            raise ValueError(
                f"The run in {checkpoint} has a different {name}: {saved[name]}, not {value}. Resume with the options "
                "and the data that the run was started with, or start a new one in another --output_dir."
            )
    if "global batch size" in changed:
        logger.warning("The global batch size has changed: some examples will be repeated or skipped")
    for name, value in changed.items():
        logger.info(f"{name}: {saved[name]} until this checkpoint, {value} from here on")


def check_same_architecture(config: ScratchBertConfig, checkpoint: str) -> None:
    """Raise `ValueError` if the model in `checkpoint` has another architecture than `config`."""
    saved = load_config(checkpoint)
    for name in ARCHITECTURE_FIELDS:
        if getattr(saved, name) != getattr(config, name):
            raise ValueError(
                f"The checkpoint {checkpoint} has {name}={getattr(saved, name)}, but the options ask for "
                f"{getattr(config, name)}. Resume with the options that the run was started with."
            )


def check_same_weights(model: PreTrainedModel, checkpoint: str) -> None:
    """Raise `ValueError` if `checkpoint` lacks weights of this model, which Trainer would silently leave random."""
    if not any(Path(checkpoint, name).is_file() for name in (WEIGHTS, INDEX)):
        return  # FSDP's own format
    _, new = find_new_weights(type(model), checkpoint, model.config)
    if new:
        raise ValueError(f"The checkpoint {checkpoint} cannot be resumed from: it has no {first_name(new)}.")
