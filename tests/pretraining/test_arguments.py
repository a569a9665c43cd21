import dataclasses

import pytest

from scratch_bert.cli import parse_arguments
from scratch_bert.model.configuration_scratch_bert import PRESETS
from scratch_bert.objectives import OBJECTIVES
from scratch_bert.pretraining.arguments import (
    DataArguments,
    EvaluationArguments,
    EvaluationDataArguments,
    ModelArguments,
    PreparationDataArguments,
    PretrainingArguments,
    parse_max_seq_length,
    parse_overrides,
)
from scratch_bert.pretraining.build_model import start_config
from scratch_bert.text.formats import FORMATS


def test_overrides_have_the_types_of_yaml():
    text = "norm_first=true, head_dim=32,layer_norm_eps=1e-5,hidden_act=relu,classifier_dropout=null"
    assert parse_overrides(text) == {
        "norm_first": True,
        "head_dim": 32,
        "layer_norm_eps": 1e-5,
        "hidden_act": "relu",
        "classifier_dropout": None,
    }
    assert parse_overrides('{"norm_first": true, "layer_norm_eps": 1e-5}') == {
        "norm_first": True,
        "layer_norm_eps": 1e-5,
    }
    assert parse_overrides(None) == parse_overrides("") == parse_overrides("{}") == {}


@pytest.mark.parametrize("text", ["norm_first=true", '{"norm_first": true}', None])
def test_overrides_stay_the_option_that_was_given(text):
    model_args = ModelArguments(config_overrides=text)
    assert model_args.config_overrides == text
    assert dataclasses.replace(model_args, preset="mini").config_overrides == text
    flags = [] if text is None else ["--config_overrides", text]
    assert parse_arguments(ModelArguments, description="", argv=flags) == (model_args,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("norm_first", "'norm_first' has no '='", id="no value"),
        pytest.param("norm_fist=1", "the config has no field norm_fist. Did you mean norm_first?", id="typo"),
        pytest.param(
            '{"norm_fist": 1}', "the config has no field norm_fist. Did you mean norm_first?", id="JSON typo"
        ),
        pytest.param("pad_token_id=9", "pad_token_id is set by the tokenizer", id="pad_token_id"),
        pytest.param("max_position_embeddings=9", "max_position_embeddings is set by", id="length"),
        pytest.param("hidden_act=[", r"'hidden_act=\[' cannot be parsed", id="not YAML"),
        pytest.param('{"norm_first": ', "cannot be parsed", id="not JSON"),
        pytest.param("norm_first=true,norm_first=false", "norm_first is given twice", id="twice"),
        pytest.param('{"norm_first": true, "norm_first": true}', "norm_first is given twice", id="twice in JSON"),
        pytest.param(",,,", "'' has no '='", id="commas"),
        pytest.param("norm_first=true,", "'' has no '='", id="trailing comma"),
        pytest.param("hidden_size=32;head_dim=8", "hidden_size must be a number, got '32;head_dim=8'. Commas", id=";"),
        pytest.param('{"head_dim": ' + "[" * 5000, "more than 20 levels", id="levels"),
        pytest.param("num_labels=1000000000", "the config has no field num_labels", id="other field"),
    ],
)
def test_overrides_with_an_error_are_rejected(text, message):
    with pytest.raises(ValueError, match=message):
        ModelArguments(config_overrides=text)


@pytest.mark.parametrize(
    "text",
    ["layer_norm_eps=1e400", "layer_norm_eps=.nan", "layer_norm_eps=2", "initializer_range=.inf", "hidden_size=1e3"],
)
def test_overrides_out_of_range_are_rejected(text):
    with pytest.raises(ValueError, match=f"config_overrides: .*{text.partition('=')[0]}"):
        ModelArguments(config_overrides=text).config()


@pytest.mark.parametrize(
    "text",
    [
        "num_hidden_layers=1000000",
        "hidden_size=4,num_attention_heads=1,num_hidden_layers=100000000",
        "vocab_size=1" + "0" * 30,
    ],
)
def test_model_that_does_not_fit_into_memory_is_found_before_the_text_is_read(text):
    with pytest.raises(ValueError, match="The model does not fit into memory: .* GB at least, and this machine has"):
        start_config(ModelArguments(config_overrides=text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("128", (128, None)), ("auto:70", (None, 70)), ("auto:07", (None, 7)), ("auto:100", (None, 100))],
)
def test_max_seq_length_is_a_number_or_a_percentile(text, expected):
    assert parse_max_seq_length(text) == expected
    data_args = DataArguments(max_seq_length=text)
    assert data_args.max_seq_length == text and (data_args.max_tokens, data_args.length_percentile) == expected


@pytest.mark.parametrize("text", ["auto", "auto:0", "auto:00", "auto:101", "auto:70%", "12.5", "-3", "", "auto:"])
def test_max_seq_length_of_another_form_is_rejected(text):
    with pytest.raises(ValueError, match="max_seq_length must be a number or auto:1 to auto:100, got"):
        DataArguments(max_seq_length=text)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 2048), ({"train_file": ["a.txt"]}, 30528), ({"train_file": ["a.txt"], "vocab_size": 500}, 500)],
    ids=["built-in corpus", "text", "given"],
)
def test_vocab_size_is_as_large_as_the_text_asks_for(options, expected):
    assert DataArguments(**options).max_vocab_size() == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_file": ["a"], "dataset_name": "b"}, "Give one of train_file and dataset_name, not both"),
        ({"dataset_name": "a", "prepared_data": "b"}, "Give one of dataset_name and prepared_data, not both"),
        ({"streaming": True}, "streaming needs a train_file, a dataset_name or prepared_data"),
        ({"mlm_probability": 0.0}, "mlm_probability must be greater than 0 and at most 1, got 0.0"),
        ({"single_segment_prob": 1.0}, "single_segment_prob must be at least 0 and less than 1, got 1.0"),
        ({"single_segment_prob": -0.1}, "single_segment_prob must be at least 0 and less than 1, got -0.1"),
        ({"mlm_probability": 1.1}, "mlm_probability must be greater than 0 and at most 1, got 1.1"),
        (
            {"streaming": True, "train_file": ["a"], "stream_buffer": 1},
            "stream_buffer must be at least 2 and at most 1,000,000,000, got 1",
        ),
        ({"sentence_splitter": ""}, "sentence_splitter must not be empty"),
        ({"sentence_splitter": "lines"}, "There is no sentence_splitter lines. Did you mean line?"),
        ({"stream_buffer": 5}, "stream_buffer has no effect without streaming"),
        ({"dataset_config": "en"}, "dataset_config has no effect without dataset_name"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_data_arguments_reject(options, message):
    with pytest.raises(ValueError, match=message):
        DataArguments(**options)


OTHER_VALUES = {
    "validation_file": ["c"],
    "validation_share": 0.2,
    "max_seq_length": "64",
    "short_seq_prob": 0.2,
    "single_segment_prob": 0.2,
    "sentence_objective": "sop",
    "static_pairs": True,
    "vocab_size": 9,
    "min_frequency": 9,
    "lowercase": False,
}


TEXT = ("text_column", "text_format", "sentence_splitter", "language", "validation_file")
EXAMPLES = ("validation_share", "max_seq_length", "short_seq_prob", "single_segment_prob", "sentence_objective")
TOKENIZER = ("tokenizer_type", "vocab_size", "min_frequency", "lowercase", "first_segment_id")
WITHOUT_EFFECT = {
    "prepared_data": (*TEXT, *EXAMPLES, *TOKENIZER, "static_pairs"),
    "streaming": ("static_pairs", "validation_share"),
    "tokenizer_name_or_path": TOKENIZER,
}


@pytest.mark.parametrize(
    ("source", "name"), [(source, name) for source, names in WITHOUT_EFFECT.items() for name in names]
)
def test_data_arguments_reject_options_without_effect(source, name):
    sources = {"train_file": ["a"], "streaming": True}
    options = {source: sources.get(source, "a"), name: OTHER_VALUES.get(name, "x")}
    if source == "streaming":
        options["train_file"] = ["a"]
    with pytest.raises(ValueError, match=f"{name} has no effect with {source}: leave it out"):
        DataArguments(**options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("remove_unused_columns", True),
        ("batch_eval_metrics", False),
        ("prediction_loss_only", True),
        ("label_smoothing_factor", 0.1),
        ("dataloader_persistent_workers", True),
    ],
)
def test_pretraining_arguments_that_must_stay(name, value):
    options = {"dataloader_num_workers": 1} if name == "dataloader_persistent_workers" else {}
    with pytest.raises(ValueError, match=f"{name} must stay"):
        PretrainingArguments(**{name: value}, **options)


def test_model_arguments_reject_options_without_effect():
    for option in ({"preset": "mini"}, {"config_overrides": "norm_first=true"}, {"token_embedding_init": "normal"}):
        with pytest.raises(ValueError, match=f"{next(iter(option))} has no effect with model_name_or_path"):
            ModelArguments(model_name_or_path="x", **option)
    with pytest.raises(ValueError, match="add_tokens has no effect without model_name_or_path"):
        ModelArguments(add_tokens="x")


def test_choices_are_the_entries_of_the_lists():
    """They are declared without the modules of these lists, whose imports take seconds."""
    for cls, name, known in (
        (ModelArguments, "preset", PRESETS),
        (DataArguments, "text_format", FORMATS),
        (DataArguments, "sentence_objective", OBJECTIVES),
    ):
        assert sorted(cls.__dataclass_fields__[name].metadata["choices"]) == sorted(known)
    for name, entries in (("text_format", FORMATS), ("sentence_objective", OBJECTIVES)):
        shown = DataArguments.__dataclass_fields__[name].metadata["help"]
        assert all(f"{entry}: {about.description}" in shown for entry, about in entries.items())
    for splitter in ("sentencex", "line"):
        DataArguments(sentence_splitter=splitter)


def test_options_of_pretraining_alone_are_no_options_elsewhere():
    tokenizer = {"tokenizer_type", "vocab_size", "min_frequency", "lowercase", "first_segment_id"}
    missing = tokenizer | {
        "streaming",
        "stream_buffer",
        "single_segment_prob",
        "static_pairs",
        "tokenizer_name_or_path",
    }
    names = {field.name for field in dataclasses.fields(EvaluationDataArguments)}
    assert {field.name for field in dataclasses.fields(DataArguments)} - names == missing
    text = {"text_column", "text_format", "sentence_splitter", "language", "tokenizer_name_or_path"}
    examples = {"sentence_objective", "max_seq_length", "short_seq_prob", "single_segment_prob"}
    assert {field.name for field in dataclasses.fields(PreparationDataArguments)} == text | examples


def test_evaluation_takes_all_of_a_validation_file_alone():
    args = EvaluationDataArguments(validation_file=["a"])
    assert (args.train_file, args.validation_file, args.validation_share) == (["a"], None, 0.0)
    args = EvaluationDataArguments(train_file=["a"], validation_file=["b"])
    assert (args.train_file, args.validation_file, args.validation_share) == (["a"], ["b"], 0.1)


def test_evaluation_rejects_an_output_file_that_exists_or_cannot_be_written(tmp_path):
    (tmp_path / "old.json").touch()
    with pytest.raises(ValueError, match="old.json exists: choose another name"):
        EvaluationArguments(model_name_or_path=["a"], output_file=str(tmp_path / "old.json"))
    with pytest.raises(ValueError, match="The directory of output_file .*new.json does not exist"):
        EvaluationArguments(model_name_or_path=["a"], output_file=str(tmp_path / "missing" / "new.json"))
    with pytest.raises(ValueError, match="the models to evaluate"):
        EvaluationArguments()
