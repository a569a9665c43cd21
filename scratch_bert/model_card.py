"""The model card of a pretraining run, filled from the run itself."""

import os
from pathlib import Path

import torch
import transformers
from huggingface_hub import ModelCard, ModelCardData

from . import __version__
from .arguments import DataArguments
from .data import PretrainingData
from .trainer import PreTrainingTrainer


def render_model_card(
    template: Path,
    trainer: PreTrainingTrainer,
    data_args: DataArguments,
    data: PretrainingData,
    metrics: dict[str, float],
) -> ModelCard:
    """`template`, a Jinja file such as the project's model_card.md, filled in after training and evaluation.

    Nothing goes in that names a path, a user or a machine.
    """
    args, eval_dataset = trainer.args, trainer.eval_dataset
    return ModelCard.from_template(
        ModelCardData(
            library_name="transformers",
            pipeline_tag="fill-mask",
            tags=["bert", "scratch_bert", "fill-mask", "next-sentence-prediction"],
        ),
        template_path=str(template),
        model_name=Path(args.output_dir).resolve().name,
        package_version=__version__,
        config=trainer.model.config,
        objective=data.sentence_objective,
        auto_class="AutoModelForMaskedLM" if data.sentence_objective == "none" else "AutoModelForPreTraining",
        lowercase=getattr(trainer.processing_class, "do_lower_case", False),
        parameters=trainer.model.num_parameters(),
        source=_source(data_args),
        corpus=data.description,
        rows=0 if data_args.streaming else len(data.train_dataset),
        max_seq_length=data.max_seq_length,
        eval_source="validation text" if data_args.validation_file else "text held out from training",
        eval_rows=len(eval_dataset) if eval_dataset else 0,
        data=data_args,
        args=args,
        state=trainer.state,
        precision="bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
        device=torch.cuda.get_device_name() if args.device.type == "cuda" else f"{os.cpu_count()} CPU cores",
        versions={"torch": torch.__version__, "transformers": transformers.__version__},
        metrics=metrics,
    )


def _source(data_args: DataArguments) -> str:
    if data_args.dataset_name:
        return "a local data set" if Path(data_args.dataset_name).exists() else data_args.dataset_name
    if data_args.prepared_data:
        return "prepared rows"
    return "text files" if data_args.train_file else "Python's built-in help texts"
