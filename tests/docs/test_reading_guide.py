"""docs/reading-guide.md: its numbers are those of docs/tiny_example.py, which are those of both models; its snippets run, its
quotations are those of the source, and its diagrams those of docs/images/diagrams.py."""

import ast
import re
import runpy
from textwrap import dedent

import pytest
import torch

from helpers import ROOT
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining


GUIDE = (ROOT / "docs/reading-guide.md").read_text(encoding="utf-8")


def words_and_numbers(text: str) -> tuple[list[str], list[float]]:
    fraction = r"-?\d+\.\d+"
    return re.sub(fraction, "#", text).split(), [float(number) for number in re.findall(fraction, text)]


same_weights = pytest.mark.skipif(torch.__version__ < (2, 13), reason="older PyTorch draws other initial weights")


@same_weights
def test_numbers_are_those_of_the_example(example, capsys):
    example["main"]()
    printed = capsys.readouterr().out.rstrip("\n").split("\n\n")
    quoted = [block.rstrip("\n") for block in re.findall(r"```text\n(.*?)```", GUIDE, flags=re.DOTALL)]
    assert [block.split("\n")[0] for block in quoted] == [section.split("\n")[0] for section in printed]
    for block, section in zip(quoted, printed, strict=True):
        (words, numbers), (expected_words, expected_numbers) = words_and_numbers(block), words_and_numbers(section)
        assert words == expected_words
        assert numbers == pytest.approx(expected_numbers, abs=0.011)  # they are rounded


@same_weights
def test_diagrams_are_those_of_the_example():
    drawn = runpy.run_path(str(ROOT / "docs/images/diagrams.py"))["diagrams"]()
    for name, svg in drawn.items():
        words, numbers = words_and_numbers((ROOT / "docs/images" / name).read_text(encoding="utf-8"))
        expected_words, expected_numbers = words_and_numbers(svg)
        assert words == expected_words, name
        assert numbers == pytest.approx(expected_numbers, abs=0.011), name  # they are rounded
    shown = re.findall(r"^!\[[^\]]{60,}\]\(images/(guide-\w+\.svg)\)", GUIDE, flags=re.MULTILINE)  # with a description
    assert sorted(shown) == sorted([*drawn, "guide-trained.svg"])


def test_parameters_of_bert_base():
    """In the order of the table: parts by the names of their weights."""
    with torch.device("meta"):
        model = ScratchBertForPreTraining(ScratchBertConfig())
    parts = [
        r"bert\.embeddings\.",
        r"bert\.encoder\.layer\.0\.attention\.(?!.*LayerNorm)",
        r"bert\.encoder\.layer\.0\.(intermediate|output)\.dense",
        r"bert\.encoder\.layer\.0\..*LayerNorm",
        r"bert\.encoder\.",
        r"bert\.pooler\.",
        r"cls\.predictions\.",
        r"cls\.seq_relationship\.",
        "",
    ]
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    counted = [sum(size for name, size in sizes.items() if re.match(part, name)) for part in parts]
    table = GUIDE.split("**Where the parameters are.**")[1].split("\n\n")[1]
    assert [int(row.split("|")[-2].replace(",", "")) for row in table.splitlines()[2:]] == counted


def find_symbol(path: str, symbol: str) -> list[str]:
    """The lines of a function or a method."""
    source = (ROOT / path).read_text(encoding="utf-8")
    node = ast.parse(source)
    for name in symbol.split("."):
        node = next(child for child in node.body if getattr(child, "name", None) == name)
    return source.split("\n")[node.lineno - 1 : node.end_lineno]


def has_lines(lines: list[str], quoted: str) -> bool:
    """Whether lines contain, but for their indent, the parts of a quotation, which `# …` separates, in order."""
    for part in quoted.split("# …\n"):
        count = part.count("\n")
        starts = range(len(lines) - count + 1)
        start = next((n for n in starts if dedent("\n".join(lines[n : n + count])) == part.rstrip("\n")), None)
        if start is None:
            return False
        lines = lines[start + count :]
    return True


def test_quotations_are_those_of_the_source():
    blocks = re.findall(r"```py\n(.*?)```", GUIDE, flags=re.DOTALL)
    quotations = [quotation for block in blocks for quotation in re.split(r"\n(?=# \S+\.py, )", block)]
    assert len(quotations) > 10
    for quotation in quotations:
        head, quoted = quotation.split("\n", 1)
        path, symbol = head.removeprefix("# ").split(", ")
        assert has_lines(find_symbol(path, symbol), quoted), head


@pytest.mark.parametrize("training", [False, True])
def test_stages_are_those_of_the_models(training, example):
    """Embeddings, attention weights, each half of each layer, logits and losses: by formula, by scratch_bert and by
    transformers' BERT."""
    batch = example["make_batch"](example["make_dataset"]())
    stages, mask = None, batch["attention_mask"]
    for model in example["make_models"]():
        stages = stages or example["plain_stages"](model, batch)
        found = example["model_stages"](model.eval(), batch)
        assert found.keys() == stages.keys() and len(stages) == 13
        assert example["largest_difference"](stages, found, mask) < 1e-5
        if training:  # ours without padding, and with logits at the masked positions alone
            assert abs(model.train()(**batch).loss - stages["loss"]) < 1e-5


def test_snippets_run(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    snippets = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    assert len(snippets) == 6
    exec("\n".join(snippets), {})


def test_dimensions_of_the_table_are_those_of_the_example(example):
    batch = example["make_batch"](example["make_dataset"]())
    (examples, length), sizes = batch["input_ids"].shape, example["SIZES"]
    rows = re.findall(r"^\| ([A-Z], [A-Z]) \|[^|]+\| ([\d, ]+) \|", GUIDE, flags=re.MULTILINE)
    assert {names: [int(number) for number in numbers.split(", ")] for names, numbers in rows} == {
        "B, S": [examples, length],
        "T, M": [batch["attention_mask"].sum(), (batch["labels"] != -100).sum()],
        "V, P": [sizes["vocab_size"], sizes["max_position_embeddings"]],
        "H, F": [sizes["hidden_size"], sizes["intermediate_size"]],
        "A, D": [sizes["num_attention_heads"], sizes["hidden_size"] // sizes["num_attention_heads"]],
    }
