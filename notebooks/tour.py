# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A tour of BERT: from text to a published model
#
# Text, tokens, pairs of segments, masks, a look inside a forward pass, two minutes of training, predictions, a fine-tuned head, and a
# model that loads anywhere. The text is the documentation that comes with Python, so nothing is downloaded. The tour takes about four
# minutes on two CPU cores; no GPU is needed.
#
# The formulas of each step, with the paper's sections: [docs/reading-guide.md](../docs/reading-guide.md).

# %%
# On Colab, first run the next line without its "# ", with the name of the repository that you read this in:
# # %pip install --quiet "scratch_bert[plots] @ git+https://github.com/me/scratch_bert"

# %%
import csv
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import warnings
from itertools import product
from pathlib import Path


warnings.filterwarnings("ignore", message="IProgress not found")  # there are no progress bars here

import datasets
import matplotlib.pyplot as plt
import torch
import transformers
from transformers import TrainerCallback

from scratch_bert.finetuning import run as finetuning
from scratch_bert.hub.publishing import public_files
from scratch_bert.objectives import OBJECTIVES
from scratch_bert.pretraining import run as pretraining
from scratch_bert.pretraining.inspection import describe_statistics, example_statistics
from scratch_bert.pretraining.metrics import describe_metrics
from scratch_bert.pretraining.sources import build_collator, load_data
from scratch_bert.text.builtin import builtin_documents
from scratch_bert.text.formats import TextSource
from scratch_bert.training.console import PlainLines
from scratch_bert_options.data import DataOptions
from scratch_bert_options.finetuning import FinetuningOptions, TaskOptions
from scratch_bert_options.model import ModelOptions
from scratch_bert_options.pretraining import PretrainingOptions


STEPS = int(os.environ.get("TOUR_STEPS", 1500))  # of pretraining
WORK = Path(tempfile.mkdtemp())  # for all that is written
plt.rcParams["figure.dpi"] = 80  # small outputs
IN_NOTEBOOK = "get_ipython" in globals()  # as a script, the tour prints, and draws nothing
if not IN_NOTEBOOK:
    plt.switch_backend("agg")
    warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
datasets.disable_progress_bars()
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()


def show(text, width=110):
    """Lines of any length, wrapped."""
    print("\n".join(textwrap.fill(line, width, subsequent_indent="    ") for line in text.splitlines()))


# %% [markdown]
# ## Text → sentences → tokens
#
# A document is a topic of Python's `help()`, or the docstrings of a module. Documents are split into sentences. A WordPiece vocabulary of
# 2,048 entries is learned from them; a word that is not in it is split into pieces, where `##` marks a piece that continues a word.

# %%
documents = list(TextSource([builtin_documents()]).documents())
print(f"{len(documents)} documents, {sum(map(len, documents)):,} sentences. The beginning of one:\n")
document = documents[40]
show("\n".join(document[:3]))

# %%
data_args = DataOptions(cache_dir=str(WORK / "cache"))
data = load_data(data_args, seed=42)
tokenizer = data.tokenizer
show(" ".join(tokenizer.tokenize(document[0])))
print()
show(" ".join(tokenizer.tokenize("A tokenizer takes unheard-of words apart.")))

# %% [markdown]
# ## Sentences → pairs
#
# Each example has two segments. Half of the second segments follow the first in their document (label 0); the others come from another
# document (label 1). New pairs are drawn in each epoch.

# %%
examples = data.train_dataset
print(examples.summary())
for label in (0, 1):
    index = int((examples.labels() == label).argmax())
    print(f"\nlabel {label}, of the documents {examples.documents()[index].tolist()}:")
    show(tokenizer.decode(examples[index]["input_ids"]))

# %% [markdown]
# ## Pairs → a masked batch
#
# In training, 30% of the tokens are to be predicted. Of these, 80% become `[MASK]`, 10% a random token, and 10% stay unchanged. `labels`
# hold the original tokens there, and -100 elsewhere.

# %%
collator = build_collator(data_args, tokenizer)
batch = collator([examples[index] for index in range(8)])
for name, tensor in batch.items():
    print(f"{name:<20} {tuple(tensor.shape)}")
print("\nposition  input         to predict")
for position in range(16):
    token, label = batch["input_ids"][0, position].item(), batch["labels"][0, position].item()
    print(f"{position:>8}  {tokenizer.decode(token):<12}  {'' if label < 0 else tokenizer.decode(label)}")

# %%
print(describe_statistics(example_statistics(data, collator, sample=2000)))

# %% [markdown]
# ## Inside a forward pass
#
# `prepare_pretraining` builds the data, the model and the Trainer; nothing is trained yet. The model has two layers, a hidden size of 128 and four
# attention heads. Every layer takes and returns a state for each token; the attention weights say how much each token (column)
# contributes to the new state of a token (row).

# %%
args = PretrainingOptions(
    output_dir=str(WORK / "my-bert"),
    max_steps=STEPS,
    logging_steps=max(STEPS // 60, 1),
    eval_steps=max(STEPS // 6, 1),
    save_strategy="no",
    trainer={"disable_tqdm": True},
)
run = pretraining.prepare_pretraining(ModelOptions(), data_args, args)
model = run.trainer.model
print(f"{model.num_parameters():,} parameters\n")
print(model.bert.encoder.layer[0])


# %%
def look_into(model, example):
    """All hidden states and attention weights of one example."""
    names = ("input_ids", "token_type_ids")
    inputs = {name: torch.tensor(example[name], device=model.device)[None].long() for name in names}
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")  # the one that returns its weights
    with torch.no_grad():
        outputs = model.eval()(**inputs, output_hidden_states=True, output_attentions=True)
    model.set_attn_implementation(implementation)
    return outputs


def draw_attention(outputs, example):
    """A map for each layer and head."""
    layers, heads = len(outputs.attentions), outputs.attentions[0].shape[1]
    tokens = tokenizer.convert_ids_to_tokens(example["input_ids"].tolist())
    figure, axes = plt.subplots(layers, heads, figsize=(2.9 * heads, 3 * layers), layout="constrained")
    for layer, head in product(range(layers), range(heads)):
        axis = axes[layer, head]
        axis.imshow(outputs.attentions[layer][0, head].cpu(), cmap="Blues", vmin=0)
        axis.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=9)
        axis.set_xticks(
            range(len(tokens)), tokens if layer == layers - 1 else [""] * len(tokens), rotation=90, fontsize=8
        )
        axis.set_yticks(range(len(tokens)), tokens if head == 0 else [""] * len(tokens), fontsize=8)
    plt.show()


held_out = data.eval_dataset
lengths = held_out.lengths()
example = held_out[int(abs(lengths - 18).argmin())]  # one of about 18 tokens, so that they can be read
show(tokenizer.decode(example["input_ids"]))
outputs = look_into(model, example)
print()
for number, states in enumerate(outputs.hidden_states):
    print(f"{'embeddings' if number == 0 else f'layer {number}':<12} {tuple(states.shape)}")
print(f"{'attention':<12} {tuple(outputs.attentions[0].shape)} in each layer")
print(f"{'MLM logits':<12} {tuple(outputs.prediction_logits.shape)}")
print(f"{'NSP logits':<12} {tuple(outputs.seq_relationship_logits.shape)}")
draw_attention(outputs, example)

# %% [markdown]
# Before training, tokens attend to themselves and, a little, to their neighbours and to their segment: the queries and keys of a head are
# initialised alike, and positions as sinusoids ([docs/learning.md](../docs/learning.md) explains why).
#
# ## Two minutes of training
#
# The curves are redrawn after every log entry: training batches as lines, held-out documents as points. The dotted lines are baselines
# that need no reading: predicting each token by its frequency, and always predicting the same label. The MLM loss of the held-out
# documents is lower also because 15% of their tokens are masked, and 30% in training.


# %%
class LiveCurves(TrainerCallback):
    def __init__(self):
        from IPython.display import display

        self.figure, self.axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
        plt.close(self.figure)
        self.shown = display(self.figure, display_id=True)

    def on_log(self, args, state, control, **kwargs):
        for axis, name, baseline in zip(self.axes, ("mlm", "nsp"), ("mlm_unigram", "nsp_majority"), strict=True):
            axis.clear()
            for key, style, label in (
                (f"{name}_loss", "-", "training"),
                (f"eval_{name}_loss", "o", "held out"),
                (f"eval_{baseline}_loss", ":", "baseline"),
            ):
                points = [(entry["step"], entry[key]) for entry in state.log_history if key in entry]
                if points:
                    axis.plot(*zip(*points, strict=True), style, label=label, markersize=4)
            axis.set(title=f"{name.upper()} loss", xlabel="step")
            axis.legend(fontsize=8)
        self.shown.update(self.figure)


if IN_NOTEBOOK:
    run.trainer.remove_callback(PlainLines)
    run.trainer.add_callback(LiveCurves())
metrics = run.train()
print(f"{metrics['train_runtime']:.0f} seconds\n")
print(describe_metrics({"my-bert": metrics}))

# %% [markdown]
# ## Predictions
#
# For masked words and pairs from the held-out documents. For each mask, the three most probable tokens are shown.

# %%
show(OBJECTIVES["nsp"].describe_predictions(model, held_out, tokenizer, count=4))

# %% [markdown]
# Attention on the same example as before. Some heads now look at the next or previous token, others stay within their segment:

# %%
draw_attention(look_into(model, example), example)

# %% [markdown]
# ## A fine-tuned head
#
# A toy task of 24 examples: is a sentence about files or about numbers? The validation sentences have other nouns and other words around
# them, so that only a model that has seen these nouns before can tell. For comparison, the same model is trained from scratch.

# %%
NOUNS = {
    "files": (["file", "path", "socket"], ["directory", "stream", "buffer"]),
    "numbers": (["integer", "float", "number"], ["decimal", "fraction", "digit"]),
}
SENTENCES = (
    ["Return a new {}.", "The {} is not valid.", "It raises an error if the {} is missing.", "This takes one {}."],
    ["Each {} has a name.", "Use another {} here.", "There is only one {}.", "A {} is an object."],
)


def write_examples(split):
    with open(WORK / f"{('train', 'validation')[split]}.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for label, nouns in NOUNS.items():
            writer.writerows([sentence.format(noun), label] for sentence in SENTENCES[split] for noun in nouns[split])
    return [file.name]


def finetune(name, random_init):
    """The accuracy of a classifier that is trained on the first nouns and predicts the others."""
    task_args = TaskOptions(
        str(WORK / "my-bert"),
        random_init=random_init,
        train_file=write_examples(0),
        validation_file=write_examples(1),
    )
    args = FinetuningOptions(
        output_dir=str(WORK / name),
        num_train_epochs=20,
        per_device_train_batch_size=8,
        learning_rate=5e-4,
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
        trainer={"disable_tqdm": True},
    )
    run = finetuning.prepare_finetuning("sequence-classification", task_args, args)
    run.first_trainer.remove_callback(PlainLines)
    return run.train().mean["eval_accuracy"]


print(f"pretrained:           accuracy {finetune('classifier', random_init=False):.3f}")
print(f"trained from scratch: accuracy {finetune('from-scratch', random_init=True):.3f}")

# %% [markdown]
# ## Publish it, open it elsewhere
#
# A push to the Hub sends these files and no others: weights, config, tokenizer, the model card with its curves, and the code. Here they
# are copied to a local folder; `scratch_bert.hub.publishing.publish` sends them to a repository.

# %%
published = WORK / "hub" / "my-bert"
published.mkdir(parents=True)
for file in public_files(WORK / "my-bert"):
    shutil.copy(file, published)
    print(f"{file.stat().st_size:>10,}  {file.name}")

# %% [markdown]
# In another process, without this package, stock transformers loads it:

# %%
ELSEWHERE = """
import sys
sys.modules["scratch_bert"] = None  # as if it were not installed
from transformers import AutoModel, AutoTokenizer, pipeline
model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
inputs = tokenizer("a function returns an object", return_tensors="pt")
print(type(model).__name__, tuple(model(**inputs).last_hidden_state.shape))
fill = pipeline("fill-mask", model=sys.argv[1], trust_remote_code=True)
for prediction in fill("return the number of [MASK] in the list."):
    print(f"{prediction['score']:.3f}  {prediction['sequence']}")
"""
result = subprocess.run([sys.executable, "-c", ELSEWHERE, str(published)], capture_output=True, text=True)
print(result.stdout or result.stderr)

# %% [markdown]
# From here: `python scripts/pretrain.py --train_file …` trains on your own text ([README](../README.md)),
# [docs/mistakes.md](../docs/mistakes.md) shows common mistakes in such code, and [docs/learning.md](../docs/learning.md) what makes small
# models learn early. A model of novels, published in this way, is in the repository ([docs/shipped-model.md](../docs/shipped-model.md)).
# The last cell removes all files written here.

# %%
shutil.rmtree(WORK)
