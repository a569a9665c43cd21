"""A saved directory works in a process without the package: it opens, trains, saves and resumes."""

import pytest
import torch
from safetensors.torch import load_file

from helpers import HEADS, MODEL_FILES, run_without_package
from scratch_bert import ScratchBertForPreTraining


@pytest.mark.smoke
def test_remote_code_opens_with_every_auto_class_and_gives_the_outputs_of_the_package(saved, tmp_path):
    output = run_without_package(
        """
        name, file, *auto_classes = sys.argv[1:]
        for auto_class in auto_classes:
            opened = getattr(transformers, auto_class).from_pretrained(name, trust_remote_code=True)
            print(type(opened).__name__, type(opened).__module__.split(".")[0])
            if auto_class != "AutoConfig":
                ids = torch.arange(5, 25).view((1, 2, 10) if "Choice" in auto_class else (2, 10))
                assert all(tensor.isfinite().all() for tensor in opened(input_ids=ids).to_tuple())
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=True)
        model = transformers.AutoModelForPreTraining.from_pretrained(name, trust_remote_code=True).eval()
        inputs = tokenizer("A class is an object.", "So is a function.", return_tensors="pt")
        torch.save({**inputs, "logits": model(**inputs).prediction_logits.detach()}, file)
        """,
        saved,
        tmp_path / "out.pt",
        *HEADS,
        "AutoConfig",
        home=tmp_path,
    )
    names = [*(model_class.__name__ for model_class in HEADS.values()), "ScratchBertConfig"]
    assert output.splitlines() == [f"{name} transformers_modules" for name in names]

    inputs = torch.load(tmp_path / "out.pt", weights_only=True)
    expected = inputs.pop("logits")
    assert inputs["token_type_ids"].unique().tolist() == [0, 1]
    model = ScratchBertForPreTraining.from_pretrained(saved).eval()
    torch.testing.assert_close(model(**inputs).prediction_logits, expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_pickled_and_traced_models_open_in_a_new_process(saved, tmp_path):
    """As BERT's do: with the code in transformers' cache, a pickle; without any code, TorchScript. dill, which
    datasets uses for functions with several processes, pickles a model in a closure."""
    run_without_package(
        """
        import copy
        import datasets
        options = {"trust_remote_code": True}
        model = transformers.AutoModel.from_pretrained(sys.argv[1], **options).eval()
        ids = torch.arange(5, 25).view(2, 10)
        states = copy.deepcopy(model)(ids).last_hidden_state.detach()
        torch.save((model, states), "whole.pt")
        model.config.return_dict = False
        torch.jit.trace(model, (ids, torch.ones_like(ids))).save("traced.pt")
        model.config.return_dict = True
        def embed(example):
            return {"sum": model(torch.tensor([example["ids"]])).last_hidden_state.sum().item()}
        mapped = datasets.Dataset.from_dict({"ids": ids.tolist()}).map(embed, num_proc=2)
        assert torch.allclose(torch.tensor(mapped["sum"][:]), states.sum((1, 2)), atol=1e-4)
        """,
        saved,
        home=tmp_path,
        environment={"OMP_NUM_THREADS": "1"},  # OpenMP's threads do not survive the fork: a second one would hang
    )
    run_without_package(
        """
        transformers.AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True)  # makes the code importable
        model, states = torch.load("whole.pt", weights_only=False)
        ids = torch.arange(5, 25).view(2, 10)
        assert torch.equal(model(ids).last_hidden_state, states)
        torch.testing.assert_close(torch.jit.load("traced.pt")(ids, torch.ones_like(ids))[0], states)
        """,
        saved,
        home=tmp_path,
    )


TRAIN = """
    from transformers import (AutoModelForMaskedLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer,
                              TrainingArguments)
    start, output, *checkpoint = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(start, trust_remote_code=True)
    model = AutoModelForMaskedLM.from_pretrained(start, trust_remote_code=True)
    # Masked in advance: the stock collator's masks would differ after a resume, as a batch is drawn ahead.
    texts = [f"the value of {i} is an object of type {i + 1}" for i in range(64)]
    examples = [tokenizer(text, padding="max_length", max_length=20, truncation=True) for text in texts]
    torch.manual_seed(0)
    masked = DataCollatorForLanguageModeling(tokenizer)(examples)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=output, per_device_train_batch_size=8, max_steps=6, save_steps=3, logging_steps=1,
            report_to="none", use_cpu=True, disable_tqdm=True,
        ),
        train_dataset=[{name: tensor[i] for name, tensor in masked.items()} for i in range(64)],
        processing_class=tokenizer,
    )
    trainer.train(resume_from_checkpoint=checkpoint[0] if checkpoint else None)
    trainer.save_model(output + "/final")
"""
# What was saved opens again, with another Auto class.
REOPEN = """
    model = transformers.AutoModelForTokenClassification.from_pretrained(output + "/final", trust_remote_code=True)
    model.save_pretrained(output + "/third")
    again = transformers.AutoModelForTokenClassification.from_pretrained(output + "/third", trust_remote_code=True)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
"""


@pytest.mark.slow
def test_remote_code_trains_saves_and_resumes(saved, tmp_path):
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    run_without_package(TRAIN, saved, straight, home=tmp_path)
    run_without_package(TRAIN + REOPEN, saved, resumed, straight / "checkpoint-3", home=tmp_path)

    expected, found = (load_file(directory / "final/model.safetensors") for directory in (straight, resumed))
    assert len(expected) > 20
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    for directory in (straight / "checkpoint-3", straight / "final"):
        assert {file.name for file in directory.iterdir()} >= MODEL_FILES - {"README.md"}
