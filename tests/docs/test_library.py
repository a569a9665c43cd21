"""The snippets of docs/library.md, one after the other in a process of its own, as a reader would run them."""

import csv
import json
import re

import pytest

from helpers import ROOT, run_process


PAGE = (ROOT / "docs/library.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_snippets_of_the_library_run(documents, tmp_path):
    with (tmp_path / "reviews.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "review"])
        rows.writerows([number, " ".join(document[:10])] for number, document in enumerate(documents[:60]))
    code = "\n".join(SNIPPETS)
    assert "max_steps=500" in code
    code = code.replace("max_steps=500", "max_steps=4, use_cpu=True")
    (tmp_path / "snippets.py").write_text(code)
    result = run_process(tmp_path / "snippets.py", cwd=tmp_path, OMP_NUM_THREADS="1")
    assert "Traceback" not in result.stderr
    run = tmp_path / "runs"
    architectures = {
        "mine/checkpoint-4": "ScratchBertForPreTraining",
        "mlm/checkpoint-3": "ScratchBertForMaskedLM",
        "distance/checkpoint-3": "ScratchBertForMaskedLM",
        "distance-in-one-call": "ScratchBertForMaskedLM",
        "one-call": "ScratchBertForPreTraining",
        "labels": "ScratchBertForSequenceClassification",
    }
    for name, architecture in architectures.items():
        assert json.loads((run / name / "config.json").read_text())["architectures"][0] == architecture, name
        assert (run / name / "modeling_scratch_bert.py").is_file()
