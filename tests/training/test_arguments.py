import pytest
import torch

from scratch_bert.cli import parse_arguments
from scratch_bert.training.arguments import CommonArguments, multiplies_bf16


def parse(*argv):
    return parse_arguments(CommonArguments, description="", argv=["--output_dir", "run", *argv])[0]


@pytest.mark.parametrize("native", [True, False], ids=["native bf16", "no native bf16"])
@pytest.mark.parametrize(
    ("flags", "bf16"), [([], None), (["--bf16"], True), (["--bf16", "false"], False), (["--fp16_full_eval"], None)]
)
def test_bf16_is_the_default_where_the_cpu_has_it_and_can_be_asked_for_anywhere(flags, bf16, native, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": native})
    args = parse(*flags)
    assert args.bf16 is (native if bf16 is None else bf16) and args.use_cpu
    assert args.bf16_by_default == (native and bf16 is None)


@pytest.mark.parametrize(
    ("gpus", "native", "bf16"),
    [(1, True, True), (1, False, False), (2, True, False)],
    ids=["one", "emulated", "several"],
)
def test_bf16_is_the_default_on_a_gpu_that_has_it(gpus, native, bf16, monkeypatch):
    """Not with DataParallel, which takes no part in autocast."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: native or including_emulation
    )
    assert multiplies_bf16(use_cpu=False) is bf16


def test_license_must_be_an_identifier_of_the_hub():
    assert CommonArguments(output_dir="run", license="cc-by-4.0").license == "cc-by-4.0"
    with pytest.raises(ValueError, match="license must be one of the Hub's identifiers, such as mit; got 'My own'"):
        CommonArguments(output_dir="run", license="My own")


def test_arguments_that_must_stay():
    args = CommonArguments(output_dir="run", label_smoothing_factor=0.1)
    args.must_stay(prediction_loss_only=(False, "metrics are computed from predictions"))
    with pytest.raises(ValueError, match="label_smoothing_factor must stay 0: a reason"):
        args.must_stay(label_smoothing_factor=(0, "a reason"))


def test_fp16_without_a_gpu_is_rejected(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ValueError, match="fp16 needs a GPU: leave it out, or choose bf16"):
        CommonArguments("run", fp16=True)
