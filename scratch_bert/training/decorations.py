"""What decorates a run: cards, pictures, trackers. None of it may end a training, whatever it raises."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import Trainer
from transformers.trainer_utils import TrainOutput

from ..logs import logger
from ..repository import one_line


class DecoratedTrainer(Trainer):
    """Trainer whose trackers, the callbacks of transformers.integrations, cannot end a training. `failures` are errors
    by what has failed; each is logged once."""

    def __init__(self, *args, **kwargs):
        self.failures: dict[str, str] = {}
        super().__init__(*args, **kwargs)

    @contextmanager
    def decoration(self, what: str) -> Iterator[None]:
        """Within `with`, an error is logged, and the run continues."""
        try:
            yield
        except Exception as error:  # of any library
            if what not in self.failures:
                self.failures[what] = one_line(error) or type(error).__name__
                logger.warning(f"{what} has failed, and the run continues without it: {self.failures[what]}")

    def draws(self, draw: Callable[..., bool], *args: Any, file: Path) -> bool:
        """Whether `draw(*args, file)` has drawn a picture, and not failed."""
        with self.decoration(file.name):
            return draw(*args, file)
        return False

    def train(self, *args, **kwargs) -> TrainOutput:
        for callback in self.callback_handler.callbacks:
            if any(base.__module__.startswith("transformers.integrations") for base in type(callback).__mro__):
                guard = self.decoration(type(callback).__name__)
                for name in dir(callback):
                    if name.startswith("on_") and not hasattr(method := getattr(callback, name), "__wrapped__"):
                        setattr(callback, name, guard(method))
        return super().train(*args, **kwargs)

    def name_failures(self) -> None:
        """Log what has failed."""
        if self.failures:
            lost = "; ".join(f"{what} ({error})" for what, error in self.failures.items())
            logger.warning(f"The run is complete, except for {lost}")
