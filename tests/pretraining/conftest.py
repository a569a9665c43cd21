import pytest

from helpers import SIZES
from scratch_bert.pretraining.run import prepare_pretraining
from scratch_bert_options.data import DataOptions
from scratch_bert_options.declare import from_keywords
from scratch_bert_options.model import ModelOptions
from scratch_bert_options.pretraining import PretrainingOptions


@pytest.fixture(scope="session")
def prepare(text_file, tmp_path_factory):
    """A run of four steps on the text file, ready to train; other options by name."""
    cache_dir = tmp_path_factory.mktemp("cache")

    def prepare(output_dir, **options):
        new = {} if "model_name_or_path" in options else {"config_overrides": SIZES, "vocab_size": 500}
        data = {"train_file": [text_file], "max_seq_length": 32, "cache_dir": cache_dir}
        training = {"max_steps": 4, "save_steps": 2, "bf16": False, "disable_tqdm": True}
        options = new | data | training | options
        return prepare_pretraining(
            *from_keywords(ModelOptions, DataOptions, PretrainingOptions, output_dir=output_dir, **options)
        )

    return prepare
