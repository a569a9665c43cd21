"""A search for hyperparameters: Optuna proposes the trials, each a separate run, of which only the best is kept."""

import shutil
from copy import copy
from dataclasses import replace
from pathlib import Path

import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState
from transformers import TrainingArguments

from scratch_bert_options.declare import reject_non_default
from scratch_bert_options.finetuning import FinetuningOptions, TaskOptions

from ..checkpoints.output_dir import output_dir_lock, read_metrics
from ..checkpoints.resume import check_same_run
from ..checkpoints.saved import find_checkpoint
from ..logs import logger
from ..repository import RUN_FILE, read_json
from ..training.seeds import SeedResults, check_parent, summarize
from ..training.trainer import DivergenceError
from .arguments import finetuning_arguments
from .run import FinetuningRun, SeedRun
from .trainer import CLASS_REPORT


LOG = "search.log"


class FinetuningSearch(FinetuningRun):
    """`task_args.search` runs in subdirectories `trial-N` of `options.output_dir`. Trials are recorded in search.log,
    from which a search resumes, and search.csv; nothing else is kept of trials other than the best.

    The learning rate is drawn between a 16th and four times that of the options, that of the head between a quarter and
    four times its own: with few examples, an encoder that hardly moves can be best. The epochs are between half and
    twice those of the options, unless these are less than one.

    Attributes:
        best: The best trial, after `train`; `model_dir` is then its directory.
    """

    def __init__(self, task_name: str, task_args: TaskOptions, options: FinetuningOptions, data=None):
        if task_args.seeds or options.push_to_hub:
            raise ValueError("search trains several models: run its best options with seeds later, or push its model.")
        reject_non_default(options, ["save_total_limit"], "with search")
        reject_non_default(task_args, ["dropout"], "with search, which tries several")
        super().__init__(task_name, task_args, options, data)
        if self.seed_runs[0].args.world_size > 1:
            raise ValueError("search runs in one process: start it without torchrun.")
        optuna.logging.set_verbosity(optuna.logging.WARNING)

    def plan(self, seeds: list[int] | None, args: TrainingArguments) -> list[SeedRun]:
        """One run, for its checks: the trials look for their own checkpoints."""
        check_parent(args, "trial")
        return [SeedRun(args)]

    def prepare(self) -> FinetuningRun:
        super().prepare()
        if (self.output_dir / RUN_FILE).is_file():
            check_same_run(self.record(self.seed_runs[0].args), str(self.output_dir))
        return self

    def train(self) -> SeedResults:
        """Run the trials that are missing. Returns the results of the best one."""
        args = self.seed_runs[0].args
        with output_dir_lock(args, self.record(args), None):
            return self._run_trials(args.greater_is_better)

    def _run_trials(self, greater: bool | None) -> SeedResults:
        self.first_trainer = None  # it was built for its checks
        self.baselines  # noqa: B018  computed once for all trials
        log = self.output_dir / LOG
        log.with_name(f"{LOG}.lock").unlink(missing_ok=True)  # left by a search that died: we hold output_dir
        if log.exists():  # without a last line that is incomplete
            content = log.read_bytes()
            log.write_bytes(content[: content.rfind(b"\n") + 1])
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(log))),
            study_name="search",
            direction="maximize" if greater else "minimize",
            load_if_exists=True,
        )
        for stopped in study.get_trials(states=[TrialState.RUNNING]):  # its checkpoint is resumed from
            study.tell(stopped.number, state=TrialState.FAIL)
            study.enqueue_trial(stopped.params)
        ended = (TrialState.COMPLETE, TrialState.PRUNED)
        if study.get_trials(states=ended[:1]) and not self.directory(study.best_trial).is_dir():
            raise OSError(
                f"{self.directory(study.best_trial)}, of the best trial, is missing: pass another output_dir."
            )
        while (number := len(study.get_trials(states=ended)) + 1) <= self.task_args.search:
            study.sampler = optuna.samplers.TPESampler(seed=self.options.seed + number)  # a resume draws the same
            trial, directory = study.ask(), self.output_dir / f"trial-{number}"
            child = self.trial_run(trial, directory)
            shown = ", ".join(f"{name} {value:.2g}" for name, value in trial.params.items())
            logger.info(f"Trial {number} of {self.task_args.search}: {shown}")
            trial.set_user_attr("directory", directory.name)
            try:
                value = child.train().mean[f"eval_{self.task.best_metric}"]
                study.tell(trial, value)
                logger.info(f"Trial {number}: {self.task.best_metric} {value:.4f}, best so far {study.best_value:.4f}")
            except DivergenceError as error:
                study.tell(trial, state=TrialState.PRUNED)
                logger.warning(f"Trial {number}: {error}")
            frame = study.trials_dataframe(("number", "value", "params", "user_attrs", "state"))
            frame[frame["state"] != "FAIL"].to_csv(self.output_dir / "search.csv", index=False)
            for one in study.get_trials(states=ended):
                if one.state == TrialState.PRUNED or one.number != study.best_trial.number:
                    shutil.rmtree(self.directory(one), ignore_errors=True)
        self.best = best = study.best_trial
        self.model_dir = self.directory(best)
        if (file := self.model_dir / CLASS_REPORT).is_file():
            self.class_reports = read_json(file)
        shown = f"{best.value:.4f} with " + ", ".join(f"--{name} {value:.4g}" for name, value in best.params.items())
        logger.info(f"The best of {self.task_args.search} trials: {self.task.best_metric} {shown}")
        return summarize({self.options.seed: read_metrics(self.model_dir)})

    def directory(self, trial: optuna.trial.FrozenTrial) -> Path:
        return self.output_dir / trial.user_attrs["directory"]

    def settings(self, trial: optuna.trial.BaseTrial) -> tuple[TaskOptions, FinetuningOptions]:
        """This run's options, with what the trial draws or has drawn."""
        rate, head_rate = self.options.learning_rate, self.options.head_learning_rate
        changes = {
            "learning_rate": trial.suggest_float("learning_rate", rate / 16, rate * 4, log=True),
            "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [16, 32]),
        }
        if head_rate:
            bounds = head_rate / 4, head_rate * 4
            changes["head_learning_rate"] = trial.suggest_float("head_learning_rate", *bounds, log=True)
        epochs = self.options.num_train_epochs
        if self.options.max_minutes is None and self.options.max_steps < 0 and epochs >= 1:
            bounds = max(1, round(epochs / 2)), round(2 * epochs)
            changes["num_train_epochs"] = trial.suggest_int("num_train_epochs", *bounds)
        dropout = trial.suggest_categorical("dropout", [0.0, 0.1])
        return replace(self.task_args, dropout=dropout), replace(self.options, **changes)

    def trial_run(self, trial: optuna.trial.BaseTrial, directory: Path) -> FinetuningRun:
        """Shares the data with this run."""
        child = copy(self)
        child.__class__ = FinetuningRun
        child.task_args, options = self.settings(trial)
        child.options = replace(options, output_dir=str(directory))
        child.options.how_to_resume = self.options.how_to_resume  # names the directory of the search
        args = finetuning_arguments(child.options)
        child.output_dir = child.model_dir = directory
        child.seed_runs = [SeedRun(args, find_checkpoint(args))]
        return child
