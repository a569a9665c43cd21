import pytest

from helpers import SCRIPTS, run_process
from scratch_bert.pretraining.arguments import parse_overrides
from scratch_bert.pretraining.build_model import start_config
from scratch_bert_options.data import DataOptions
from scratch_bert_options.declare import from_keywords
from scratch_bert_options.evaluation import EvaluationDataOptions
from scratch_bert_options.model import ModelOptions
from scratch_bert_options.pretraining import PretrainingOptions, check_nodes


def test_overrides_have_the_types_of_yaml():
    text = "norm_first=true, head_dim=32,layer_norm_eps=1e-5,hidden_act=relu,classifier_dropout=null"
    both = {"norm_first": True, "layer_norm_eps": 1e-5}
    others = {"head_dim": 32, "hidden_act": "relu", "classifier_dropout": None}
    assert parse_overrides(text) == both | others
    assert parse_overrides('{"norm_first": true, "layer_norm_eps": 1e-5}') == both
    assert parse_overrides(None) == parse_overrides("") == parse_overrides("{}") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("norm_first", "takes comma-separated field=value pairs, got norm_first"),
        ("norm_fist=1", "the config has no field norm_fist. Did you mean norm_first?"),
        ("pad_token_id=9", "pad_token_id is set by the tokenizer"),
        ("hidden_act=[", "config_overrides: while parsing"),
        ("hidden_size=32;head_dim=8", "could not convert string to float"),
        ("layer_norm_eps=2", "config_overrides: .*layer_norm_eps"),
        ("initializer_range=.inf", "config_overrides: .*initializer_range"),
        ("hidden_size=1e3", "config_overrides: .*hidden_size"),
    ],
)
def test_overrides_with_an_error_are_rejected_before_the_text_is_read(text, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        start_config(ModelOptions(config_overrides=text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("128", 128), (128, 128), ("auto:70", "auto:70"), ("auto:100", "auto:100")],
)
def test_max_seq_length_is_a_number_or_a_percentile(text, expected):
    assert DataOptions(max_seq_length=text).max_seq_length == expected


@pytest.mark.parametrize("text", ["auto", "auto:0", "auto:101", "auto:70%", "12.5", "-3", "1000001"])
def test_max_seq_length_of_another_form_is_rejected(text):
    with pytest.raises(ValueError, match="max_seq_length must be a number up to 1000000 or auto:1 to auto:100, got"):
        DataOptions(max_seq_length=text)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 2048), ({"train_file": ["a.txt"]}, 30528), ({"train_file": ["a.txt"], "vocab_size": 500}, 500)],
    ids=["built-in corpus", "text", "given"],
)
def test_vocab_size_is_as_large_as_the_text_asks_for(options, expected):
    assert DataOptions(**options).tokenizer_options()["vocab_size"] == expected


PREPARED, STREAMED = {"prepared_data": "a"}, {"streaming": True, "train_file": ["a"]}
IN_VAIN_PREPARED = "has no effect with prepared_data: leave it out"
IN_VAIN_STREAMED = "has no effect with streaming: leave it out"
IN_VAIN_MODEL = "has no effect with model_name_or_path"


@pytest.mark.parametrize(
    ("group", "given", "message"),
    [
        (DataOptions, {"train_file": ["a"], "dataset_name": "b"}, "Give one of train_file and dataset_name, not both"),
        (DataOptions, {**PREPARED, "dataset_name": "b"}, "Give one of dataset_name and prepared_data, not both"),
        (DataOptions, {"streaming": True}, "streaming needs a train_file, a dataset_name or prepared_data"),
        (DataOptions, {"sentence_splitter": "lines"}, "no sentence_splitter lines. Did you mean line?"),
        (DataOptions, {"stream_buffer": 5}, "stream_buffer has no effect without streaming"),
        (DataOptions, {"mask_replace_prob": 0, "random_replace_prob": 0}, "the model would see what it predicts"),
        (DataOptions, {"dataset_config": "en"}, "dataset_config has no effect without dataset_name"),
        (DataOptions, {**PREPARED, "text_format": "html"}, f"text_format {IN_VAIN_PREPARED}"),
        (DataOptions, {**PREPARED, "max_seq_length": "64"}, f"max_seq_length {IN_VAIN_PREPARED}"),
        (DataOptions, {**PREPARED, "single_segment_prob": 0.2}, f"single_segment_prob {IN_VAIN_PREPARED}"),
        (DataOptions, {**PREPARED, "vocab_size": 9}, f"vocab_size {IN_VAIN_PREPARED}"),
        (DataOptions, {**PREPARED, "static_pairs": True}, f"static_pairs {IN_VAIN_PREPARED}"),
        (DataOptions, {**PREPARED, "sentence_objective": "nsp"}, IN_VAIN_PREPARED),  # a default that is given
        (DataOptions, {**PREPARED, "first_segment_id": 0}, IN_VAIN_PREPARED),
        (DataOptions, {**STREAMED, "static_pairs": True}, f"static_pairs {IN_VAIN_STREAMED}"),
        (DataOptions, {**STREAMED, "validation_share": 0.2}, f"validation_share {IN_VAIN_STREAMED}"),
        (DataOptions, {"tokenizer_name_or_path": "a", "lowercase": False}, "lowercase has no effect with tokenizer"),
        (ModelOptions, {"model_name_or_path": "x", "preset": "mini"}, f"preset {IN_VAIN_MODEL}"),
        (ModelOptions, {"model_name_or_path": "x", "config_overrides": "norm_first=true"}, IN_VAIN_MODEL),
        (ModelOptions, {"model_name_or_path": "x", "token_embedding_init": "normal"}, IN_VAIN_MODEL),
        (ModelOptions, {"add_tokens": "x"}, "add_tokens has no effect without model_name_or_path"),
        (
            EvaluationDataOptions,
            {"validation_file": ["a"], "validation_share": 0.2},
            "no effect with validation_file alone",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_options_that_contradict_or_have_no_effect_are_rejected(group, given, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        from_keywords(group, **given)


def test_option_without_a_value_is_not_rejected():
    from_keywords(DataOptions, **PREPARED, sentence_objective=None)


def nodes(monkeypatch, processes, on_this):
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(on_this))


@pytest.mark.parametrize(
    ("processes", "options"),
    [
        ((1, 1), {}),
        ((8, 8), {}),
        ((16, 8), {"tokenizer_name_or_path": "tokenizer"}),
        ((16, 8), {"prepared_data": "prepared"}),
        ((16, 8), {"model_name_or_path": "bert"}),
        ((16, 8), {"resume_from_checkpoint": "auto"}),
        ((16, 8), {"resume_from_checkpoint": "run/checkpoint-5", "output_dir": "elsewhere"}),
    ],
)
def test_nodes_that_train_no_tokenizer(processes, options, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    nodes(monkeypatch, *processes)
    (tmp_path / "run" / "checkpoint-5").mkdir(parents=True)
    check_nodes(*from_keywords(ModelOptions, DataOptions, PretrainingOptions, **{"output_dir": "run"} | options))


@pytest.mark.parametrize("options", [{}, {"train_file": ["a.txt"]}, {"resume_from_checkpoint": "auto"}])
def test_nodes_that_would_each_train_a_tokenizer(options, monkeypatch, tmp_path):
    nodes(monkeypatch, 16, 8)
    arguments = from_keywords(ModelOptions, DataOptions, PretrainingOptions, output_dir=tmp_path / "new", **options)
    with pytest.raises(
        ValueError, match="scratch-bert tokenizer`, .* as tokenizer_name_or_path; or .*scratch-bert prepare-data"
    ):
        check_nodes(*arguments)


def test_nodes_are_told_before_anything_is_read():
    command = [SCRIPTS / "pretrain.py", "--train_file", "nowhere.txt"]
    process = run_process("-X", "importtime", *command, check=False, WORLD_SIZE="2", LOCAL_WORLD_SIZE="1")
    assert process.returncode == 1 and "error: On several machines, each would train" in process.stderr
    assert "torch" not in process.stderr  # among the imported modules
