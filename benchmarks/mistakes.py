#!/usr/bin/env python
"""Measure the cost of common mistakes in BERT tutorials: a small patch adds each to the package, and a model is
trained for the same number of steps on the built-in corpus, and evaluated on the same held-out examples.

`python benchmarks/mistakes.py` measures all mistakes, `python benchmarks/mistakes.py shared_layers` those named, after
`none`, the unpatched package. `log` is the loss of the last training steps; `shown` metrics are those of an evaluation
with the mistake; `true` metrics are the package's, of the same model; `cost` is what the mistake adds to the true loss,
with a 95% interval if there are several seeds. docs/mistakes.md explains each mistake, and names the test that fails
with it."""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import NamedTuple
from unittest import mock
from zlib import crc32

import numpy as np
import torch
from scipy import stats
from torch import nn

from scratch_bert.corpus import encoder, tokenizer_training
from scratch_bert.corpus.corpus import TokenizedCorpus
from scratch_bert.examples import dataset as examples
from scratch_bert.examples.collator import PretrainingCollator
from scratch_bert.examples.dataset import SentencePairDataset
from scratch_bert.model import modeling_scratch_bert as modeling
from scratch_bert.objectives import OBJECTIVES, pairs
from scratch_bert.pretraining.run import prepare_pretraining
from scratch_bert.pretraining.sources import load_data
from scratch_bert.pretraining.trainer import PretrainingTrainer
from scratch_bert.text.builtin import builtin_documents
from scratch_bert.text.formats import TextSource
from scratch_bert.training.console import PlainLines
from scratch_bert_options.data import DataOptions
from scratch_bert_options.model import ModelOptions
from scratch_bert_options.pretraining import PretrainingOptions


# ------------------------------------------------------------------------------------------------------- the model


def layers_in_forward():
    def forward(self, states, residual):
        dense = nn.Linear(self.dense.in_features, self.dense.out_features)  # new random weights in every call
        return self.LayerNorm(residual + self.dropout(dense(states)))

    return mock.patch.multiple(modeling.ScratchBertOutput, forward=forward)


def shared_layers():
    original = modeling.ScratchBertEncoder.__init__

    def init(self, config):
        original(self, config)
        self.layer = nn.ModuleList([self.layer[0]] * config.num_hidden_layers)  # one layer, several times

    return mock.patch.multiple(modeling.ScratchBertEncoder, __init__=init)


def scaled_by_length():
    original = modeling.ScratchBertSelfAttention.__init__

    def init(self, config, layer_idx=None):
        original(self, config, layer_idx)
        self.scaling = 1 / config.max_position_embeddings  # about S here, instead of 1 / √D

    return mock.patch.multiple(modeling.ScratchBertSelfAttention, __init__=init)


def padded(**functions: Callable):
    """Compute all positions, including padding."""
    return mock.patch.multiple(modeling, may_unpad=lambda *inputs: False, **functions)


def mask_sign():
    def attention_mask_for(config, embeddings, attention_mask, seq_idx, keep):
        return (attention_mask.to(embeddings.dtype) * -10_000.0)[:, None, None, :]  # instead of (1 - mask) * …

    return padded(attention_mask_for=attention_mask_for)


def mask_shape():
    def attention_mask_for(config, embeddings, attention_mask, seq_idx, keep):
        padding = (1 - attention_mask.to(embeddings.dtype)) * -10_000.0
        rows = padding[:, None, :, None]  # the token that attends, instead of [:, None, None, :]
        return rows.expand(-1, -1, -1, attention_mask.shape[1])

    return padded(attention_mask_for=attention_mask_for)


def view_for_transpose():
    original = modeling.project

    def project(states, layers):
        heads = 4  # of the preset, and of the test's models
        shape = len(states), heads, states.shape[1], -1
        # After the model's own transpose, what states.view(B, A, S, D) gives instead of view(B, S, A, D).transpose(1, 2).
        return [each.reshape(shape).transpose(1, 2).flatten(2) for each in original(states, layers)]

    return padded(project=project)


def no_residuals():
    def forward(self, states, residual):
        return self.LayerNorm(self.dropout(self.dense(states)))

    return mock.patch.multiple(modeling.ScratchBertOutput, forward=forward)


def no_positions():
    class NoPositions(nn.Embedding):
        def forward(self, position_ids):
            return 0 * super().forward(position_ids)

    original = modeling.ScratchBertEmbeddings.__init__

    def init(self, config):
        original(self, config)
        self.position_embeddings = NoPositions(config.max_position_embeddings, config.hidden_size)

    return mock.patch.multiple(modeling.ScratchBertEmbeddings, __init__=init)


# -------------------------------------------------------------------------------------------------------- the losses


def masking(change: Callable):
    """Mask by `change(collator, original method, token ids (B, S), mask of special tokens (B, S))`."""
    original = PretrainingCollator.torch_mask_tokens

    def torch_mask_tokens(self, inputs, special_tokens_mask=None, offset_mapping=None):
        return change(self, original, inputs, special_tokens_mask)

    return mock.patch.multiple(PretrainingCollator, torch_mask_tokens=torch_mask_tokens)


@contextmanager
def loss_over_padding():
    def change(collator, mask_tokens, inputs, special_tokens_mask):
        padding = inputs == collator.tokenizer.pad_token_id
        inputs, labels = mask_tokens(collator, inputs, special_tokens_mask)
        return inputs, labels.masked_fill(padding, collator.tokenizer.pad_token_id)  # instead of -100

    with masking(change), padded():
        yield


def mean_over_all_tokens():
    original = modeling.ScratchBertWithMLMHead.mlm_logits_and_loss

    def mlm_logits_and_loss(self, hidden_states, labels, positions, num_items_in_batch):
        logits, loss = original(self, hidden_states, labels, positions, num_items_in_batch)
        return logits, None if loss is None else loss * labels.ne(-100).float().mean()  # times M / (B·S)

    return mock.patch.multiple(modeling.ScratchBertWithMLMHead, mlm_logits_and_loss=mlm_logits_and_loss)


def softmax_twice():
    original = modeling.cross_entropy

    def cross_entropy(logits, *labels, **options):
        return original(logits.softmax(-1), *labels, **options)  # which takes its own softmax

    return mock.patch.multiple(modeling, cross_entropy=cross_entropy)


def all_tokens_labelled():
    def change(collator, mask_tokens, inputs, special_tokens_mask):
        labels = inputs.masked_fill(special_tokens_mask.bool(), -100)  # instead of masked tokens only
        return mask_tokens(collator, inputs, special_tokens_mask)[0], labels

    return masking(change)


# --------------------------------------------------------------------------------------------------------- the data


def special_tokens_masked():
    def change(collator, mask_tokens, inputs, special_tokens_mask):
        return mask_tokens(collator, inputs, inputs == collator.tokenizer.pad_token_id)  # without [CLS] and [SEP]

    return masking(change)


def special_tokens_as_replacements():
    def change(collator, mask_tokens, inputs, special_tokens_mask):
        every_id = torch.arange(len(collator.tokenizer))  # with [CLS], [SEP], [PAD], [MASK], [UNK]
        with mock.patch.object(collator, "ordinary_ids", every_id):
            return mask_tokens(collator, inputs, special_tokens_mask)

    return masking(change)


def masks_with_replacement():
    """Positions are drawn one after the other and put back, so that some are drawn twice, and masked twice."""

    def change(collator, mask_tokens, inputs, special_tokens_mask):
        labels = torch.full_like(inputs, -100)
        for row, special in enumerate(special_tokens_mask.bool()):
            positions = (~special).nonzero()[:, 0]
            count = round(collator.mlm_probability * len(positions))
            for drawn in torch.randint(len(positions), (count,), generator=collator.generator).tolist():
                position = positions[drawn]
                labels[row, position] = inputs[row, position]  # [MASK], if it was drawn before
                kind = torch.rand(1, generator=collator.generator).item()
                if kind < 0.8:
                    inputs[row, position] = collator.tokenizer.mask_token_id
                elif kind < 0.9:
                    index = torch.randint(len(collator.ordinary_ids), (1,), generator=collator.generator)
                    inputs[row, position] = collator.ordinary_ids[index]
        return inputs, labels

    return masking(change)


@contextmanager
def static_masks():
    """Mask as if before the training, in the same way in each epoch."""

    def change(collator, mask_tokens, inputs, special_tokens_mask):
        masked = []
        for ids, special in zip(inputs, special_tokens_mask, strict=True):
            text = ids[ids != collator.tokenizer.pad_token_id]
            collator.generator = torch.Generator().manual_seed(crc32(text.numpy()))  # the same in each epoch
            masked.append(mask_tokens(collator, ids[None], special[None]))
        return tuple(torch.cat(parts) for parts in zip(*masked, strict=True))

    original = examples.SentencePairDataset.__init__

    def init(self, *args, **options):
        original(self, *args, **options | {"static_pairs": True})

    with masking(change), mock.patch.multiple(examples.SentencePairDataset, __init__=init):
        yield


def negatives_from_the_document(with_itself: bool):
    def build(corpus, limit, short_seq_prob, single_segment_prob, rng):
        chunks = pairs.cut(corpus, limit, short_seq_prob, rng)
        complete = np.flatnonzero(chunks.num_units > 1)
        start, split, end, document = (
            array[complete] for array in (chunks.start, chunks.split, chunks.end, chunks.document)
        )
        index, label = np.arange(len(complete)), rng.integers(2, size=len(complete))
        first, last = (np.searchsorted(document, document, side) for side in ("left", "right"))  # of the same document
        other = rng.integers(first, last)
        if not with_itself:
            label[last - first == 1] = 0  # there is no other chunk
            other = np.where(other == index, np.where(index + 1 < last, index + 1, first), other)
        other = np.where(label == 1, other, index)
        # Split where the pair gets about the length of a chunk, as in the package: lengths must not reveal labels.
        second = chunks.nearest_split(complete[other], start[other] + split - start)
        return pairs.trim(np.column_stack([start, split, second, end[other], label]), limit)

    return mock.patch.object(OBJECTIVES["nsp"], "draw_pairs", build)


def labels_inverted():
    original = encoder.ExampleEncoder.__call__

    def call(self, tokens, pair):
        example = original(self, tokens, pair)
        return example | {"next_sentence_label": 1 - example["next_sentence_label"]}  # 1 = follows

    return mock.patch.multiple(encoder.ExampleEncoder, __call__=call)


# ----------------------------------------------------------------------------------------------------- the training


def gradients_kept():
    return mock.patch.multiple(modeling.ScratchBertForPreTraining, zero_grad=lambda self, set_to_none=True: None)


def scheduler_per_batch():
    def create_scheduler(self, num_training_steps, optimizer=None):
        # A schedule of epochs, whose step() is called after each batch, as Trainer does with its own.
        self.lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer or self.optimizer, step_size=1, gamma=0.95)
        return self.lr_scheduler

    return mock.patch.multiple(PretrainingTrainer, create_scheduler=create_scheduler)


# --------------------------------------------------------------------------------------------------- the evaluation


def evaluated_on_training_text():
    original = TokenizedCorpus.split

    def split(self, fraction, seed):
        training, held_out = original(self, fraction, seed)
        return training, original(training, fraction, seed)[1]  # instead of the held-out documents

    return mock.patch.multiple(TokenizedCorpus, split=split)


def no_eval():
    return mock.patch.multiple(modeling.ScratchBertForPreTraining, eval=lambda self: self.train())  # leaves dropout on


def no_unknown_token():
    original = tokenizer_training.WordLevel
    return mock.patch.multiple(tokenizer_training, WordLevel=lambda vocab, unk_token: original(vocab))


# ---------------------------------------------------------------------------------------------------- measurements


class Mistake(NamedTuple):
    patch: Callable = nullcontext
    """Function that returns a context in which the package makes the mistake."""
    scope: str = "training"
    """What is affected. `model`: the model, in every evaluation, too; `training`: data and loss, also in the
    evaluation that is `shown`; `evaluation`: only the latter."""
    objective: str | None = "mlm"
    """Whose table it belongs to; None if no model is trained."""
    dropout: float = 0.0
    """Of the model, for a mistake that has no effect without it."""


MISTAKES = {
    "none": Mistake(),
    "layers_in_forward": Mistake(layers_in_forward, "model"),
    "shared_layers": Mistake(shared_layers, "model"),
    "scaled_by_length": Mistake(scaled_by_length, "model"),
    "view_for_transpose": Mistake(view_for_transpose, "model"),
    "no_residuals": Mistake(no_residuals, "model"),
    "no_positions": Mistake(no_positions, "model"),
    "mask_sign": Mistake(mask_sign, "model"),
    "mask_shape": Mistake(mask_shape, "model"),
    "loss_over_padding": Mistake(loss_over_padding),
    "mean_over_all_tokens": Mistake(mean_over_all_tokens),
    "softmax_twice": Mistake(softmax_twice),
    "all_tokens_labelled": Mistake(all_tokens_labelled),
    "special_tokens_masked": Mistake(special_tokens_masked),
    "special_tokens_as_replacements": Mistake(special_tokens_as_replacements),
    "masks_with_replacement": Mistake(masks_with_replacement),
    "static_masks": Mistake(static_masks),
    "same_document_negatives": Mistake(partial(negatives_from_the_document, with_itself=False), objective="nsp"),
    "false_negatives": Mistake(partial(negatives_from_the_document, with_itself=True), objective="nsp"),
    "labels_inverted": Mistake(labels_inverted, objective="nsp"),
    "gradients_kept": Mistake(gradients_kept),
    "scheduler_per_batch": Mistake(scheduler_per_batch),
    "accuracy_of_all_tokens": Mistake(all_tokens_labelled, "evaluation"),
    "evaluated_on_training_text": Mistake(evaluated_on_training_text, "evaluation"),
    "no_eval": Mistake(no_eval, dropout=0.1),
    "no_unknown_token": Mistake(no_unknown_token, objective=None),
}

BATCH_SIZE, LOGGING_STEPS = 32, 50
STEPS = {"mlm": 300, "nsp": 500}  # NSP is learned later


@cache
def train(name: str, seed: int, steps: int) -> PretrainingTrainer:
    mistake = MISTAKES[name]
    training = {"seed": seed, "max_steps": steps, "per_device_train_batch_size": BATCH_SIZE}
    training |= {"eval_strategy": "no", "save_strategy": "no", "trainer": {"disable_tqdm": True}}
    training |= {"logging_steps": min(LOGGING_STEPS, steps)}
    with tempfile.TemporaryDirectory() as directory, mistake.patch():
        model = ModelOptions(dropout=mistake.dropout)
        run = prepare_pretraining(model, DataOptions(), PretrainingOptions(output_dir=directory, **training))
        run.trainer.remove_callback(PlainLines)
        run.trainer.train()
    return run.trainer


@cache
def held_out_examples(seed: int) -> SentencePairDataset:
    """The package's held-out examples, without a mistake."""
    return load_data(DataOptions(), seed).eval_dataset


def measure(name: str, seed: int, steps: int) -> dict[str, float]:
    """The last losses in the log of a model with a mistake, and its metrics with the mistake and without."""
    mistake = MISTAKES[name]
    trainer = train("none" if mistake.scope == "evaluation" else name, seed, steps)
    log = [entry for entry in trainer.state.log_history if "mlm_loss" in entry][-1]
    with mistake.patch():
        shown = trainer.evaluate(load_data(DataOptions(), seed).eval_dataset)
    held_out = held_out_examples(seed)
    with mistake.patch() if mistake.scope == "model" else nullcontext():
        true = trainer.evaluate(held_out)
    results = {f"log_{objective}_loss": log[f"{objective}_loss"] for objective in STEPS}
    for kind, metrics in (("shown", shown), ("true", true)):
        results |= {name.replace("eval", kind, 1): value for name, value in metrics.items()}
    return results


def measure_unknown_words() -> str:
    """Fraction of every tenth document's text that a vocabulary of all words of the other documents lacks."""
    documents = builtin_documents()
    held_out = [sentence for document in TextSource([documents[::10]]).documents() for sentence in document]
    training = [document for number, document in enumerate(documents) if number % 10]
    fractions = []
    for kind, size in (("wordlevel", 1_000_000), ("wordpiece", 2048)):
        trained = tokenizer_training.train_tokenizer(training, size, kind, min_frequency=1)
        unknown = [
            [token == trained.unk_token_id for token in ids]
            for ids in trained(held_out, add_special_tokens=False)["input_ids"]
        ]
        words, sentences = np.concatenate(unknown).mean(), np.mean([any(tokens) for tokens in unknown])
        fractions.append(
            f"{kind}, {len(trained):,} entries: {words:.2%} of the tokens, in {sentences:.1%} of the sentences"
        )
    return "Unknown in held-out text: " + "; ".join(fractions) + "."


def describe(name: str, objective: str, results: dict[str, list[dict[str, float]]]) -> str:
    """A row of the objective's table: means over the seeds, and what the mistake adds to the true loss of `none`,
    paired by seed, with its 95% interval by Student's t."""
    measured = results[name]
    mean = {key: statistics.mean(result[key] for result in measured) for key in measured[0]}
    losses = [f"{mean[f'{kind}_{objective}_loss']:.2f}" for kind in ("log", "shown", "true")]
    accuracies = [f"{mean[f'{kind}_{objective}_accuracy']:.3f}" for kind in ("shown", "true")]
    loss = f"true_{objective}_loss"
    costs = [wrong[loss] - right[loss] for wrong, right in zip(measured, results["none"], strict=True)]
    cost = f"{statistics.mean(costs):+.2f}"
    if len(costs) > 1:
        error = statistics.stdev(costs) / len(costs) ** 0.5
        cost += f" ± {stats.t.ppf(0.975, len(costs) - 1) * error:.2f}"
    return f"| {' | '.join([f'`{name}`', *losses, cost if name != 'none' else '', *accuracies])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mistakes", nargs="*", help=f"Any of {', '.join(MISTAKES)}. Default: all.")
    parser.add_argument("--seeds", nargs="+", type=int, default=[42], help="Train with each; the table has the means.")
    parser.add_argument("--steps", type=int, help=f"Training steps, of {BATCH_SIZE} examples. Default: {STEPS}.")
    args = parser.parse_args()
    unknown = set(args.mistakes) - set(MISTAKES)
    if unknown:
        parser.error(f"there is no mistake {', '.join(sorted(unknown))}, only {', '.join(MISTAKES)}")
    if args.steps is not None and (args.steps < 1 or args.steps > LOGGING_STEPS and args.steps % LOGGING_STEPS):
        parser.error(f"--steps must be positive, and a multiple of {LOGGING_STEPS} beyond that, not {args.steps}")
    names = args.mistakes or list(MISTAKES)
    for objective, steps in STEPS.items():
        measured = [name for name in names if MISTAKES[name].objective == objective]
        if measured:
            print(f"| {objective.upper()} | loss: log | shown | true | cost | accuracy: shown | true |")
            print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
            results = {}
            for name in dict.fromkeys(["none", *measured]):
                results[name] = [measure(name, seed, args.steps or steps) for seed in args.seeds]
                print(describe(name, objective, results), flush=True)
            print()
    if "no_unknown_token" in names:
        print(measure_unknown_words())


if __name__ == "__main__":
    main()
