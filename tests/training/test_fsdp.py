"""FSDP2 under gloo, on CPUs, which accelerate does not offer: the stock Trainer and ours shard the model, save it
whole, and train as one process does."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining

from helpers import NO_DROPOUT, SCRIPTS, SIZES, run_process


# accelerate shards models on accelerators alone: where it has chosen otherwise, it is told as they would tell it.
ON_CPU = """
import os, runpy, sys
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

def init(self, *args, fsdp_plugin=None, stock=AcceleratorState.__init__, **kwargs):
    stock(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    if fsdp_plugin is not None:
        self.fsdp_plugin, self.distributed_type = fsdp_plugin, DistributedType.FSDP
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP

AcceleratorState.__init__ = init
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))  # as Python does for a script
runpy.run_path(sys.argv[0], run_name="__main__")
"""
STOCK = """
import os, sys, time
import torch
from transformers import Trainer, TrainingArguments
sys.path.insert(0, sys.argv[1])
from helpers import NO_DROPOUT, SMALL, make_batch
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining

torch.manual_seed(0)
model = ScratchBertForPreTraining(ScratchBertConfig(**SMALL, **NO_DROPOUT))
batch = make_batch("AutoModelForPreTraining", rows=32)
batch["labels"] = batch["input_ids"].clone()  # as many in each micro-batch
batch["attention_mask"].fill_(1)
processes = int(os.environ.get("WORLD_SIZE", 1))
fsdp = {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": "ScratchBertLayer"}}
options = {"max_steps": 3, "learning_rate": 1e-3, "use_cpu": True, "save_strategy": "no", "report_to": "none"}
options |= fsdp if processes > 1 else {}
args = TrainingArguments(sys.argv[2], per_device_train_batch_size=8 // processes, **options)
examples = [{name: values[row] for name, values in batch.items()} for row in range(32)]
trainer = Trainer(model, args, train_dataset=examples)
assert trainer.is_fsdp_enabled == (processes > 1)
trainer.train()
trainer.save_model()
trainer.accelerator.wait_for_everyone()
time.sleep(1)  # gloo aborts a process that exits while its threads free what they have gathered
"""
pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path):
    """Runs a script in this many processes, with FSDP on CPUs."""
    (tmp_path / "on_cpu.py").write_text(ON_CPU)

    def start(processes, script, *arguments):
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", processes] * (processes > 1)
        return run_process(*torchrun, tmp_path / "on_cpu.py", script, *arguments, OMP_NUM_THREADS="1")

    return start


def assert_same_weights(one, two):
    one, two = (load_file(directory / "model.safetensors") for directory in (one, two))
    assert one.keys() == two.keys()
    for name, weight in one.items():
        if name.endswith("key.bias"):  # its gradient is 0, but for rounding, which Adam enlarges
            continue
        torch.testing.assert_close(two[name], weight, rtol=0, atol=1e-5, msg=name)


def test_stock_trainer_trains_as_on_one_process_and_saves_a_model_that_opens(start, tmp_path):
    (tmp_path / "stock.py").write_text(STOCK)
    for processes in (1, 2):
        start(processes, tmp_path / "stock.py", SCRIPTS.parent / "tests", tmp_path / str(processes))
    assert_same_weights(tmp_path / "1", tmp_path / "2")
    assert {p.name for p in (tmp_path / "2").glob("*.py")} == {p.name for p in (tmp_path / "1").glob("*.py")}
    AutoModelForPreTraining.from_pretrained(tmp_path / "2", trust_remote_code=True)
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in "12"]
    assert configs[0] == configs[1]


def test_pretraining_resumes_on_another_number_of_processes(start, text_file, tmp_path):
    """Whether its checkpoints are full or sharded."""
    everything_masked = ["--mlm_probability", 1, "--mask_replace_prob", 1, "--random_replace_prob", 0]
    options = ["--train_file", text_file, "--cache_dir", tmp_path / "cache"]
    options += ["--vocab_size", 500, "--max_seq_length", 32, "--optim", "adamw_torch"]
    options += ["--sentence_objective", "none", "--validation_share", 0.2, *everything_masked]
    options += ["--config_overrides", json.dumps({**SIZES, **NO_DROPOUT})]
    options += ["--use_cpu", "--bf16", "false", "--max_steps", 4, "--save_steps", 2, "--disable_tqdm", "true"]
    options += ["--resume_from_checkpoint", "auto", "--train_sampling_strategy", "random"]

    def pretrain(name, processes, kind=None):
        fsdp = {"version": 2, "transformer_layer_cls_to_wrap": "ScratchBertLayer", "state_dict_type": kind}
        own = ["--output_dir", tmp_path / name, "--per_device_train_batch_size", 16 // processes]
        own += ["--fsdp", "--fsdp_config", json.dumps(fsdp), "--snapshots", 3] if kind else []
        return start(processes, SCRIPTS / "pretrain.py", *options, *own)

    pretrain("whole", 1)
    for kind in ("FULL_STATE_DICT", "SHARDED_STATE_DICT"):
        result = pretrain(kind, 2, kind)
        assert "No snapshots are kept under FSDP" in result.stderr and "MLM loss" in result.stdout
        assert_same_weights(tmp_path / "whole", tmp_path / kind)
        assert_same_weights(tmp_path / "whole" / "checkpoint-2", tmp_path / kind / "checkpoint-2")
        shutil.copytree(tmp_path / kind / "checkpoint-2", tmp_path / f"{kind}-4" / "checkpoint-2")
        pretrain(f"{kind}-4", 4, kind)
        assert_same_weights(tmp_path / "whole", tmp_path / f"{kind}-4")


def test_processes_leave_a_save_together(start, tmp_path):
    """One that exits while gloo's threads still free what it has gathered is aborted now and then."""
    script = tmp_path / "script.py"
    script.write_text(f"""
import sys, time
sys.path.insert(0, {str(SCRIPTS.parent / "tests")!r})
from training.test_trainer import make_trainer
fsdp = {{"version": 2, "transformer_layer_cls_to_wrap": "ScratchBertLayer"}}
options = dict(max_steps=1, use_cpu=True, save_strategy="no", fsdp=True, fsdp_config=fsdp)
trainer = make_trainer({str(tmp_path / "run")!r}, **options)
trainer.write_card = lambda trainer, directory: time.sleep(5)
trainer.train()
trainer.save_model()
open({str(tmp_path)!r} + f"/{{trainer.args.process_index}}.txt", "w").write(str(time.time()))
""")
    start(2, script)
    first, second = (float((tmp_path / f"{rank}.txt").read_text()) for rank in (0, 1))
    assert abs(first - second) < 2
