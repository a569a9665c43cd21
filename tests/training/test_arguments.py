import pytest
import torch

from scratch_bert.training.arguments import gains_from_bf16, make_training_arguments, time_product
from scratch_bert_options.declare import from_keywords
from scratch_bert_options.training import CommonOptions


def arguments(**options):
    return make_training_arguments(*from_keywords(CommonOptions, output_dir="run", **options), {})


@pytest.mark.parametrize(
    ("native", "seconds", "default"),
    [(True, 1, True), (True, 3, False), (False, 1, False)],
    ids=["faster", "slower", "not native"],
)
@pytest.mark.parametrize(
    ("options", "bf16"),
    [({}, None), ({"bf16": True}, True), ({"bf16": False}, False), ({"fp16_full_eval": True}, None)],
)
def test_bf16_is_the_default_where_it_is_faster_and_can_be_asked_for(
    options, bf16, native, seconds, default, monkeypatch
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": native})
    monkeypatch.setattr(
        "scratch_bert.training.arguments.time_product", {torch.bfloat16: seconds, torch.float32: 2}.get
    )
    args = arguments(**options)
    assert args.bf16 is (default if bf16 is None else bf16) and args.use_cpu


def test_time_of_products_is_that_of_one_thread():
    threads = torch.get_num_threads()
    assert all(0 < time_product(dtype) < 10 for dtype in (torch.float32, torch.bfloat16))
    assert torch.get_num_threads() == threads


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
    assert gains_from_bf16(use_cpu=False) is bf16


def test_fp16_without_a_gpu_is_rejected(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ValueError, match="fp16 needs a GPU: leave it out, or choose bf16"):
        arguments(fp16=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"report_to": "nothing"}, "report_to nothing is not installed"),
        ({"report_to": "tensorboard,nothing"}, "report_to nothing is not installed"),
        ({"report_to": ["mlflow"]}, "report_to mlflow is not installed: `.*python -m pip install mlflow`, or"),
        ({"hub_model_id": "me/x"}, "hub_model_id has no effect without push_to_hub"),
        ({"max_minutes": 1, "num_train_epochs": 5}, "num_train_epochs has no effect with max_minutes"),
        ({"max_minutes": 1, "save_steps": 0.1}, "With max_minutes, save_steps must be a number of steps"),
    ],
)
def test_what_trainer_would_reject_only_when_it_trains(options, message):
    with pytest.raises(ValueError, match=message):
        arguments(**options)
