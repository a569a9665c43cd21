"""A saved directory works in a process that does not have the package: open, train, save again, resume."""

import pytest
import torch

from helpers import HEADS, run_without_package
from scratch_bert import ScratchBertForPreTraining


def test_every_auto_class_opens_a_pretraining_directory(saved, tmp_path):
    output = run_without_package(
        """
        for auto_class in sys.argv[2:]:
            opened = getattr(transformers, auto_class).from_pretrained(sys.argv[1], trust_remote_code=True)
            print(type(opened).__name__, type(opened).__module__.split(".")[0])
            if auto_class != "AutoConfig":
                ids = torch.arange(5, 25).view((1, 2, 10) if "Choice" in auto_class else (2, 10))
                assert all(tensor.isfinite().all() for tensor in opened(input_ids=ids).to_tuple())
        """,
        saved,
        *HEADS,
        "AutoConfig",
        home=tmp_path,
    )
    names = [*(model_class.__name__ for model_class in HEADS.values()), "ScratchBertConfig"]
    assert output.splitlines() == [f"{name} transformers_modules" for name in names]


def test_the_numbers_are_those_of_the_package(saved, tmp_path):
    run_without_package(
        """
        tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
        model = transformers.AutoModelForPreTraining.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
        inputs = tokenizer("A class is an object.", "So is a function.", return_tensors="pt")
        torch.save({**inputs, "logits": model(**inputs).prediction_logits.detach()}, sys.argv[2])
        """,
        saved,
        tmp_path / "out.pt",
        home=tmp_path,
    )
    inputs = torch.load(tmp_path / "out.pt", weights_only=True)
    expected = inputs.pop("logits")
    assert inputs["token_type_ids"].unique().tolist() == [0, 1]
    model = ScratchBertForPreTraining.from_pretrained(saved).eval()
    torch.testing.assert_close(model(**inputs).prediction_logits, expected, rtol=0, atol=1e-6)


TRAIN = """
    from transformers import (AutoModelForMaskedLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer,
                              TrainingArguments)
    start, output, steps = sys.argv[1:4]
    tokenizer = AutoTokenizer.from_pretrained(start, trust_remote_code=True)
    model = AutoModelForMaskedLM.from_pretrained(start, trust_remote_code=True)
    # Masked once and for all: the stock collator's masks would not survive a resume (a batch is drawn ahead).
    rows = [f"the value of {i} is an object of type {i + 1}" for i in range(64)]
    rows = [tokenizer(row, padding="max_length", max_length=20, truncation=True) for row in rows]
    torch.manual_seed(0)
    masked = DataCollatorForLanguageModeling(tokenizer)(rows)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=output, per_device_train_batch_size=8, max_steps=6, save_steps=3, logging_steps=1,
            report_to="none", use_cpu=True, disable_tqdm=True,
        ),
        train_dataset=[{name: tensor[i] for name, tensor in masked.items()} for i in range(64)],
        processing_class=tokenizer,
    )
    trainer.train(resume_from_checkpoint=sys.argv[4] if len(sys.argv) > 4 else None)
    trainer.save_model(output + "/final")
    for name, parameter in sorted(model.state_dict().items()):
        print(name, parameter.double().sum().item(), parameter.double().norm().item())
"""


@pytest.mark.slow
def test_training_saving_and_resuming(saved, tmp_path):
    straight = run_without_package(TRAIN, saved, tmp_path / "straight", 6, home=tmp_path)
    checkpoint = tmp_path / "straight" / "checkpoint-3"
    resumed = run_without_package(TRAIN, saved, tmp_path / "resumed", 6, checkpoint, home=tmp_path)

    def numbers(output):
        lines = [line.rsplit(" ", 2) for line in output.splitlines() if line.startswith(("bert.", "cls."))]
        return {name: (float(total), float(norm)) for name, total, norm in lines}

    assert len(numbers(straight)) > 20
    for name, expected in numbers(straight).items():
        assert numbers(resumed)[name] == pytest.approx(expected, rel=1e-6, abs=1e-6), name

    # What was saved carries its code and the whole map: it opens again, with another Auto class.
    for directory in (checkpoint, tmp_path / "straight" / "final"):
        assert {file.name for file in directory.iterdir()} >= {
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "configuration_scratch_bert.py",
            "modeling_scratch_bert.py",
        }
    run_without_package(
        """
        model = transformers.AutoModelForTokenClassification.from_pretrained(sys.argv[1], trust_remote_code=True)
        model.save_pretrained(sys.argv[2])
        again = transformers.AutoModelForTokenClassification.from_pretrained(sys.argv[2], trust_remote_code=True)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, again.state_dict()[name]), name
        """,
        tmp_path / "straight" / "final",
        tmp_path / "third",
        home=tmp_path,
    )
