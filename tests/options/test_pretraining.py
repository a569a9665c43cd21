import pytest

from helpers import SCRIPTS, run_process
from scratch_bert.pretraining.arguments import parse_overrides
from scratch_bert.pretraining.build_model import start_config
from scratch_bert_options.data import DataOptions
from scratch_bert_options.declare import from_keywords
from scratch_bert_options.model import ModelOptions
from scratch_bert_options.pretraining import PretrainingOptions, check_nodes


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_file": ["a"], "dataset_name": "b"}, "Give one of train_file and dataset_name, not both"),
        ({"dataset_name": "a", "prepared_data": "b"}, "Give one of dataset_name and prepared_data, not both"),
        ({"streaming": True}, "streaming needs a train_file, a dataset_name or prepared_data"),
        ({"sentence_splitter": "lines"}, "There is no sentence_splitter lines. Did you mean line?"),
        ({"stream_buffer": 5}, "stream_buffer has no effect without streaming"),
        ({"mask_replace_prob": 0, "random_replace_prob": 0}, "the model would see what it predicts"),
        ({"dataset_config": "en"}, "dataset_config has no effect without dataset_name"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_data_arguments_reject(options, message):
    with pytest.raises(ValueError, match=message):
        from_keywords(DataOptions, **options)


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("prepared_data", {"text_format": "html"}),
        ("prepared_data", {"max_seq_length": "64"}),
        ("prepared_data", {"single_segment_prob": 0.2}),
        ("prepared_data", {"vocab_size": 9}),
        ("prepared_data", {"static_pairs": True}),
        ("streaming", {"static_pairs": True}),
        ("streaming", {"validation_share": 0.2}),
        ("tokenizer_name_or_path", {"lowercase": False}),
    ],
)
def test_options_without_effect_are_rejected(source, options):
    given = {"streaming": True, "train_file": ["a"]} if source == "streaming" else {source: "a"}
    with pytest.raises(ValueError, match=f"{next(iter(options))} has no effect with {source}: leave it out"):
        DataOptions(**given, **options)


def test_defaults_without_effect_are_rejected_if_they_are_given():
    for given in ({"prepared_data": "a", "sentence_objective": "nsp"}, {"prepared_data": "a", "first_segment_id": 0}):
        with pytest.raises(ValueError, match="has no effect with prepared_data: leave it out"):
            from_keywords(DataOptions, **given)
    from_keywords(DataOptions, prepared_data="a", sentence_objective=None)


def test_model_arguments_reject_options_without_effect():
    for option in ({"preset": "mini"}, {"config_overrides": "norm_first=true"}, {"token_embedding_init": "normal"}):
        with pytest.raises(ValueError, match=f"{next(iter(option))} has no effect with model_name_or_path"):
            ModelOptions(model_name_or_path="x", **option)
    with pytest.raises(ValueError, match="add_tokens has no effect without model_name_or_path"):
        ModelOptions(add_tokens="x")


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
