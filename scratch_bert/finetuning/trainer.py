"""The Trainer of fine-tuning: new weights learn at their own rate, classes may have weights, and a run ends with
predictions and scores."""

from collections.abc import Collection
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers.utils import ModelOutput

from ..atomic import write_json
from ..checkpoints.output_dir import output_dir_lock, write_metrics
from ..checkpoints.saved import explain_write_errors
from ..training.counting import CountingCollator
from ..training.trainer import ScratchBertTrainer
from .tasks.base import Task, check_logits


CLASS_REPORT = "class_report.json"
"""File of an output directory with the `class_report` of each split."""


class FinetuningTrainer(ScratchBertTrainer):
    """`results` may already contain the scores of baselines.

    Args:
        new_weights: The names of the weights that learn at `options.head_learning_rate`.
        class_weights: (L,) Weights of the classes in the loss, with a mean of 1 over the training examples.
    """

    def __init__(self, *args, new_weights: Collection[str] = (), class_weights: torch.Tensor | None = None, **kwargs):
        loss = None if class_weights is None else self.weighted_loss
        super().__init__(*args, compute_loss_func=loss, **kwargs)
        self.class_weights = class_weights
        self.new_weights = new_weights
        self.class_reports: dict[str, dict] = {}  # by split, once they are predicted
        if self.counts_on_the_host:
            self.data_collator = CountingCollator(self.data_collator, labels=False, compiled=self.args.torch_compile)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        created, optimizer = self.optimizer is None, super().create_optimizer(model)
        if not created:
            return optimizer
        named = dict((self.model if model is None else model).named_parameters())
        new = {named[name] for name in self.new_weights if name in named}
        for group in list(optimizer.param_groups):
            if chosen := [parameter for parameter in group["params"] if parameter in new]:
                group["params"] = [parameter for parameter in group["params"] if parameter not in new]
                optimizer.add_param_group({**group, "params": chosen, "lr": self.options.head_learning_rate})
        return optimizer

    def weighted_loss(
        self, outputs: ModelOutput, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """The cross entropy with `class_weights`, divided by the number of labels."""
        logits, labels = outputs["logits"].flatten(0, -2).float(), labels.flatten()
        weights, smoothing = self.class_weights.to(logits.device), self.args.label_smoothing_factor
        total = F.cross_entropy(logits, labels, weights, reduction="sum", label_smoothing=smoothing)
        return total / ((labels >= 0).sum() if num_items_in_batch is None else num_items_in_batch)

    def train_and_predict(self, task: Task, checkpoint: str | None = None) -> dict[str, float]:
        """Train, from a checkpoint if one is given; then write predictions, model and metrics. Returns the metrics."""
        output_dir, self.test_dataset = Path(self.args.output_dir), task.features.get("test")
        with output_dir_lock(self.args, self.record, checkpoint):
            metrics = self.results | self.train(resume_from_checkpoint=checkpoint).metrics
            self.raise_if_interrupted()
            outputs = {"validation": self.final_evaluation}
            self.compute_metrics = None  # from here on, scores are computed from the predictions that are written
            for split, prefix in (("validation", "eval"), ("test", "test")):
                if split not in task.features:
                    if self.is_world_process_zero():  # predictions of an earlier training
                        (output_dir / task.predictions_file(split)).unlink(missing_ok=True)
                    continue
                output = outputs.get(split) or self.predict(task.features[split], metric_key_prefix=prefix)
                check_logits(output.predictions)
                predictions = task.decode(split, output.predictions)
                if split == "validation":
                    task = task.adapted(predictions)
                    for name, value in task.model_options.items():
                        setattr(self.model.config, name, value)
                if split in task.references:
                    with self.decoration("The report by class"):
                        if report := task.class_report(split, predictions):
                            self.class_reports[split] = report
                    scores = task.compute_scores(split, predictions)
                    metrics |= {name: value for name, value in output.metrics.items() if name.startswith(prefix)}
                    metrics |= {f"{prefix}_{name}": value for name, value in scores.items()}
                    self.check_finite(metrics)
                if self.is_world_process_zero():
                    with explain_write_errors("The predictions", output_dir):
                        task.write_predictions(split, predictions, output_dir)
            self.results = metrics  # for the model card
            self.save_model()
            if self.is_world_process_zero():
                write_metrics(output_dir, metrics)
                if self.class_reports:
                    write_json(output_dir / CLASS_REPORT, self.class_reports)
        return metrics
