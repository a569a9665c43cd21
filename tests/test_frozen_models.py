"""What the code of commit d23c185 has written works with its own code and with today's: examples/models/README.md."""

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file

from helpers import ROOT, run_script, run_without_package
from scratch_bert import ScratchBertForPreTraining
from scratch_bert.examples.collator import pack_sequences
from scratch_bert.hub.code import update_code
from scratch_bert.hub.conversion import convert_checkpoint
from scratch_bert.model import padding_scratch_bert


FROZEN = ROOT / "examples/models"
MODEL = FROZEN / "gutenberg-micro"
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
INPUTS = ("input_ids", "token_type_ids", "attention_mask")


@pytest.fixture(scope="module")
def stored():
    """Its outputs on two pairs of sentences of different lengths, computed by its own code at commit d23c185; of the MLM
    logits, those of every fourth token of the vocabulary."""
    return load_file(FROZEN / "gutenberg-micro-outputs.safetensors")


COMPARE = """
    from safetensors.torch import load_file
    from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining
    for name in sys.argv[2:]:
        stored = load_file(sys.argv[1])
        batch = {key: stored[key] for key in ("input_ids", "token_type_ids", "attention_mask")}
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=True)
        sentences = ["The captain looked at the sea, and said nothing.", "It was late."]
        others = ["A storm was coming from the west.", "She laughed."]
        for key, values in tokenizer(sentences, others, padding=True, return_tensors="pt").items():
            assert torch.equal(values, batch[key]), key
        mask, outputs = batch["attention_mask"].bool(), {}
        for auto_class in (AutoModel, AutoModelForPreTraining, AutoModelForMaskedLM):
            model = auto_class.from_pretrained(name, trust_remote_code=True, dtype=torch.float32).eval()
            outputs |= {key: found[..., ::4] if key.endswith("logits") and "seq" not in key else found for key, found in model(**batch).items()}
        outputs["prediction_logits_alone"], stored["prediction_logits_alone"] = outputs.pop("logits"), stored["prediction_logits"]
        for key, found in outputs.items():
            found, expected = (x[mask] if x.shape[:2] == mask.shape else x for x in (found, stored[key]))
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=lambda text: key + text)
        fill = transformers.pipeline("fill-mask", model=name, trust_remote_code=True)
        print([prediction["token_str"] for prediction in fill("she opened the [MASK] and went in.")])
"""


def test_frozen_model_opens_without_the_package_and_gives_its_outputs(tmp_path):
    """With its own code, and with today's."""
    shutil.copytree(MODEL, tmp_path / "own")
    shutil.copytree(MODEL, tmp_path / "todays")
    update_code(tmp_path / "todays")
    outputs = FROZEN / "gutenberg-micro-outputs.safetensors"
    printed = run_without_package(COMPARE, outputs, tmp_path / "own", tmp_path / "todays", home=tmp_path)
    assert printed.count("door") == 2


@pytest.mark.parametrize("unpad_inputs", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
def test_frozen_model_gives_its_outputs_in_every_path(stored, packed, attention, unpad_inputs):
    model = ScratchBertForPreTraining.from_pretrained(MODEL, dtype=torch.float32, attn_implementation=attention).eval()
    batch = {name: stored[name] for name in INPUTS}
    packed_batch = pack_sequences(batch, 64, 0) if packed else batch
    outputs = model(**packed_batch, unpad_inputs=unpad_inputs)
    found = outputs.prediction_logits[packed_batch["attention_mask"].bool()][..., ::4]
    expected = stored["prediction_logits"][batch["attention_mask"].bool()]
    torch.testing.assert_close(found, expected, **TOLERANCE)
    torch.testing.assert_close(outputs.seq_relationship_logits, stored["seq_relationship_logits"], **TOLERANCE)


def test_frozen_model_in_bf16(stored):
    model = ScratchBertForPreTraining.from_pretrained(MODEL).eval()
    assert model.dtype == torch.bfloat16  # as published
    batch, mask = {name: stored[name] for name in INPUTS}, stored["attention_mask"].bool()
    found, expected = model(**batch).prediction_logits[mask][..., ::4].float(), stored["prediction_logits"][mask]
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_frozen_model_converts_and_is_published(stored, tmp_path, monkeypatch, capsys):
    convert_checkpoint(MODEL, tmp_path / "bert", "bert")
    bert = transformers.BertForPreTraining.from_pretrained(tmp_path / "bert", dtype=torch.float32).eval()
    outputs, mask = bert(**{name: stored[name] for name in INPUTS}), stored["attention_mask"].bool()
    torch.testing.assert_close(
        outputs.prediction_logits[mask][..., ::4], stored["prediction_logits"][mask], **TOLERANCE
    )
    run_script(monkeypatch, "push_to_hub.py", MODEL, "user/name", "--dry_run")
    listed = capsys.readouterr().out
    assert "operations_scratch_bert.py" in listed and "Not sent: metrics.json, training.log\n" in listed


def test_frozen_model_is_fine_tuned_and_shown(tmp_path, monkeypatch):
    from scratch_bert_demo.model import Model

    examples = "".join(f"{text},{label}\n" for text, label in (("a calm sea", "calm"), ("a storm", "wild")) * 8)
    (tmp_path / "a.csv").write_text(f"text,label\n{examples}")
    options = ("--train_file", tmp_path / "a.csv", "--validation_file", tmp_path / "a.csv", "--max_steps", 2)
    run_script(
        monkeypatch, "finetune.py", "sequence-classification", "--model_name_or_path", MODEL, *options,
        "--output_dir", tmp_path / "run", "--bf16", "false", "--disable_tqdm", "true",
    )  # fmt: skip
    assert 0 <= json.loads((tmp_path / "run/metrics.json").read_text())["eval_accuracy"] <= 1
    answer = Model(str(MODEL)).fill_mask("she opened the [MASK] and went in.")
    assert "door" in str(answer)


def test_interrupted_run_resumes_and_ends_as_it_would_have(tmp_path, monkeypatch):
    frozen = FROZEN / "interrupted-run"
    shutil.copytree(frozen / "checkpoint-20", tmp_path / "run/checkpoint-20")
    shutil.copy(frozen / "the-land-of-the-blue-flower.txt", tmp_path)
    monkeypatch.chdir(tmp_path)
    # What dropout draws follows the lengths of attention's groups, which were multiples of 2 then, if over 32, and the
    # rows, of which none were added in fp32.
    lengths = lambda length, multiple: length + length % 2 * (length > 32)  # noqa: E731
    monkeypatch.setattr(padding_scratch_bert, "common_length", lengths)
    monkeypatch.setattr(padding_scratch_bert, "surplus_rows", lambda *_: 0)
    options = (frozen / "options.yaml").resolve()
    run_script(
        monkeypatch,
        "pretrain.py",
        shutil.copy(options, tmp_path),
        *("--output_dir", "run", "--resume_from_checkpoint"),
        *("--muon_matrices", "layers", "--learning_rate", 1e-3),  # the defaults then
    )
    found, expected = load_file("run/model.safetensors"), load_file(frozen / "finished.safetensors")
    start = load_file(frozen / "checkpoint-20/model.safetensors")
    assert found.keys() == expected.keys()

    def distance(one, other):
        return torch.cat([(one[name] - other[name]).flatten() for name in expected]).norm().item()

    # Bit-equal on the machine of the run. Another number of threads changes sums, and 20 steps make more of that.
    assert distance(found, expected) < 0.01 * distance(expected, start)
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    finished = json.loads((frozen / "finished.json").read_text())
    assert {name: metrics[name] for name in finished} == pytest.approx(finished, abs=2e-3)
