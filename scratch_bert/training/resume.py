"""Which checkpoint a run resumes from, and whether it can."""

import zipfile
from pathlib import Path

from transformers import TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from ..hub.publishing import WEIGHTS, is_complete
from ..model.configuration_scratch_bert import ARCHITECTURE_FIELDS, ScratchBertConfig


def find_checkpoint(args: TrainingArguments) -> str | None:
    """The checkpoint that `args.resume_from_checkpoint` asks for: a directory, or `last` for the newest in output_dir.

    None for a new run. Raises `ValueError` if there is no such checkpoint, if it is damaged, or if the output directory
    is not empty and the checkpoint belongs to another run.
    """
    output_dir, checkpoint = Path(args.output_dir), args.resume_from_checkpoint
    if str(checkpoint).lower() in ("last", "true"):
        checkpoint = get_last_checkpoint(output_dir) if output_dir.is_dir() else None
    if args.resume_from_checkpoint and (checkpoint is None or not Path(checkpoint).is_dir()):
        raise ValueError(
            f"There is no checkpoint to resume from in {checkpoint or output_dir}. Start a new run without "
            "--resume_from_checkpoint."
        )
    continues = checkpoint and Path(checkpoint).absolute().parent.resolve() == output_dir.resolve()
    if not continues and args.should_save and output_dir.exists() and any(output_dir.iterdir()):
        raise ValueError(
            f"The output directory {output_dir} is not empty. Pass --resume_from_checkpoint to continue the run in it, or "
            "another --output_dir to start a new one."
        )
    if checkpoint is None:
        return None
    for name in (WEIGHTS, "optimizer.pt", "scheduler.pt", "trainer_state.json"):
        if not _can_be_read(Path(checkpoint) / name):
            raise ValueError(
                f"The checkpoint {checkpoint} cannot be resumed from: {name} is missing or truncated. Name an earlier "
                "checkpoint: --resume_from_checkpoint DIRECTORY."
            )
    return str(checkpoint)


def check_same_architecture(config: ScratchBertConfig, checkpoint: str) -> None:
    """Raise `ValueError` if the model in `checkpoint` has another architecture than `config`."""
    saved = ScratchBertConfig.from_pretrained(checkpoint)
    for name in ARCHITECTURE_FIELDS:
        if getattr(saved, name) != getattr(config, name):
            raise ValueError(
                f"The checkpoint {checkpoint} has {name}={getattr(saved, name)}, but the options ask for "
                f"{getattr(config, name)}. Resume with the options that the run was started with."
            )


def _can_be_read(file: Path) -> bool:
    if file.suffix == ".pt":
        return zipfile.is_zipfile(file)  # a file saved by torch ends with the zip format's directory
    if file.suffix == ".json":
        return file.is_file() and file.read_text(encoding="utf-8").rstrip().endswith("}")
    return is_complete(file)
