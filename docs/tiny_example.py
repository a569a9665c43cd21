#!/usr/bin/env python
"""One batch, from three texts to the loss of both objectives, with each stage of the model in plain PyTorch.

docs/reading-guide.md quotes the output. tests/docs/test_reading_guide.py compares both, and every stage with
scratch_bert and with transformers' BERT with the same weights. Dimensions are those of the model file."""

import math

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForPreTraining, BertTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining
from scratch_bert.corpus.corpus import TokenizedCorpus
from scratch_bert.examples.collator import PretrainingCollator
from scratch_bert.examples.dataset import SentencePairDataset
from scratch_bert.text.formats import TextSource


TEXTS = [
    "The cat sat on the mat. It slept.",
    "The ship sailed home. The wind was strong.",
    "It rained. The cats slept.",
]
VOCABULARY = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] . the it cat ship wind mat home strong was sat slept sail rain on ##s ##ed"
)
TOKENS = VOCABULARY.split()
SIZES = {
    "vocab_size": len(TOKENS),  # V = 22
    "hidden_size": 8,  # H
    "num_hidden_layers": 2,
    "num_attention_heads": 2,  # A, of size D = 4
    "intermediate_size": 16,  # F
    "max_position_embeddings": 20,  # P
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.5,  # large, so that attention is visible
    "attn_implementation": "eager",  # it returns attention weights
}


# ---------------------------------------------------------------------------------------------------- text to batch


def make_dataset() -> SentencePairDataset:
    """Examples of the three texts: text → sentences → token ids → pairs → examples."""
    tokenizer = BertTokenizer(vocab={token: number for number, token in enumerate(TOKENS)})
    corpus = TokenizedCorpus.from_documents(TextSource([TEXTS]).documents(), tokenizer)
    # This seed gives pairs of both labels, and all three kinds of masks in the first pair.
    return SentencePairDataset(corpus, tokenizer, max_seq_length=20, short_seq_prob=0.0, seed=978)


def make_batch(dataset: SentencePairDataset) -> dict[str, Tensor]:
    """All examples of an epoch as one masked batch: `next_sentence_label` (B,), and `input_ids`, `token_type_ids`,
    `attention_mask` and `labels`, (B, S) each."""
    return PretrainingCollator(dataset.tokenizer, mlm_probability=0.3)(list(dataset))


def make_models() -> tuple[ScratchBertForPreTraining, BertForPreTraining]:
    """The model with random weights, and transformers' BERT with the same weights."""
    torch.manual_seed(0)
    model = ScratchBertForPreTraining(ScratchBertConfig(**SIZES)).eval()
    bert = BertForPreTraining(BertConfig(**SIZES)).eval()
    weights = model.state_dict()
    # The bias of the MLM head has a second name there.
    bert.load_state_dict(weights | {"cls.predictions.decoder.bias": weights["cls.predictions.bias"]})
    return model, bert


# --------------------------------------------------------------------------------------------------- batch to losses


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    return x @ layer.weight.T + layer.bias


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def layer_norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias


@torch.no_grad()
def plain_stages(model: ScratchBertForPreTraining, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each stage by its formula, at every position, including padding."""
    stages = {}
    padding = batch["attention_mask"] == 0  # (B, S)

    tables = model.bert.embeddings
    x = tables.word_embeddings.weight[batch["input_ids"]]  # (B, S, H)
    x = x + tables.token_type_embeddings.weight[batch["token_type_ids"]]
    x = x + tables.position_embeddings.weight[: x.shape[1]]
    x = stages["embeddings"] = layer_norm(x, tables.LayerNorm)

    for number, layer in enumerate(model.bert.encoder.layer, 1):
        attention, output = layer.attention.self, layer.attention.output
        q, k, v = (
            linear(x, projection).unflatten(-1, (model.config.num_attention_heads, -1)).transpose(1, 2)  # (B, A, S, D)
            for projection in (attention.query, attention.key, attention.value)
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1])  # (B, A, S, S)
        weights = scores.masked_fill(padding[:, None, None, :], -math.inf).softmax(-1)
        context = (weights @ v).transpose(1, 2).flatten(2)  # (B, S, A·D)
        stages[f"layer {number}: attention weights"] = weights
        x = stages[f"layer {number}: after attention"] = layer_norm(
            x + linear(context, output.dense), output.LayerNorm
        )
        expanded = gelu(linear(x, layer.intermediate.dense))  # (B, S, F)
        x = layer_norm(x + linear(expanded, layer.output.dense), layer.output.LayerNorm)
        stages[f"layer {number}: after feed-forward"] = x

    head, labels = model.cls.predictions, batch["labels"]
    predicted = layer_norm(gelu(linear(x, head.transform.dense)), head.transform.LayerNorm)  # (B, S, H)
    logits = stages["MLM logits"] = predicted @ tables.word_embeddings.weight.T + head.bias  # (B, S, V)
    masked = labels != -100  # (B, S), M of them
    stages["MLM loss"] = -logits.log_softmax(-1)[masked, labels[masked]].mean()

    pooled = stages["pooled"] = linear(x[:, 0], model.bert.pooler.dense).tanh()  # (B, H)
    logits, labels = linear(pooled, model.cls.seq_relationship), batch["next_sentence_label"]  # (B, 2), (B,)
    stages["NSP logits"] = logits
    stages["NSP loss"] = -logits.log_softmax(-1)[torch.arange(len(labels)), labels].mean()
    stages["loss"] = stages["MLM loss"] + stages["NSP loss"]
    return stages


@torch.no_grad()
def model_stages(model: PreTrainedModel, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same stages from a model's forward, scratch_bert's or that of transformers' BERT."""
    seen = []
    parts = [*(layer.attention.output.LayerNorm for layer in model.bert.encoder.layer), model.bert.pooler]
    hooks = [part.register_forward_hook(lambda module, inputs, output: seen.append(output)) for part in parts]
    outputs = model(**batch, output_hidden_states=True, output_attentions=True)
    for hook in hooks:
        hook.remove()
    *after_attention, pooled = seen
    stages = {"embeddings": outputs.hidden_states[0]}
    for number, weights in enumerate(outputs.attentions, 1):
        stages[f"layer {number}: attention weights"] = weights
        stages[f"layer {number}: after attention"] = after_attention[number - 1]
        stages[f"layer {number}: after feed-forward"] = outputs.hidden_states[number]
    mlm_logits, nsp_logits = outputs.prediction_logits, outputs.seq_relationship_logits
    return stages | {
        "MLM logits": mlm_logits,
        "MLM loss": nn.functional.cross_entropy(mlm_logits.flatten(0, 1), batch["labels"].flatten()),
        "pooled": pooled,
        "NSP logits": nsp_logits,
        "NSP loss": nn.functional.cross_entropy(nsp_logits, batch["next_sentence_label"]),
        "loss": outputs.loss,
    }


def largest_difference(stages: dict[str, Tensor], others: dict[str, Tensor], attention_mask: Tensor) -> float:
    """Largest difference at any stage, without states at padding, which are undefined."""
    differences = []
    for name, stage in stages.items():
        difference = (stage - others[name]).abs()
        if stage.dim() == 4:  # attention weights (B, A, S, S), by the position that attends
            difference = difference.transpose(1, 2)  # (B, S, A, S)
        if difference.shape[:2] == attention_mask.shape:
            difference = difference[attention_mask.bool()]
        differences.append(difference.max().item())
    return max(differences)


# ------------------------------------------------------------------------------------------------------ what is shown


def show(title: str, *lines: str) -> None:
    print("\n".join([f"# {title}", *lines]), end="\n\n")


def table(names: list[str], numbers: Tensor) -> list[str]:
    """A line for each row of a matrix."""
    return [
        f"{name:<8}" + "".join(f"{number:6.2f}" for number in row) for name, row in zip(names, numbers, strict=True)
    ]


def show_text(dataset: SentencePairDataset) -> None:
    tokenizer, corpus = dataset.tokenizer, dataset.corpus
    for number, (first, last) in enumerate(corpus.documents.tolist()):
        lines = []
        for sentence in range(first, last):
            start, end = corpus.sentence_offsets[sentence : sentence + 2]
            ids = corpus.tokens[start:end].tolist()
            lines.append(f"tokens {start:2} to {end:2}: {' '.join(tokenizer.convert_ids_to_tokens(ids)):<27} {ids}")
        show(f"document {number}: {TEXTS[number]}", *lines)


def show_pairs(dataset: SentencePairDataset) -> None:
    lines = [
        f"{pair.tolist()!s:<22}{dataset.tokenizer.decode(dataset[n]['input_ids'])}"
        for n, pair in enumerate(dataset.pairs)
    ]
    show("pairs: a_start, a_end, b_start, b_end, label", *lines)


def show_batch(batch: dict[str, Tensor], tokenizer: PreTrainedTokenizerBase) -> None:
    examples, length = batch["input_ids"].shape
    counts = f"T = {batch['attention_mask'].sum()}, M = {(batch['labels'] != -100).sum()}"
    lines = ["position  input     input_ids  token_type_ids  attention_mask  labels"]
    columns = ("input_ids", "token_type_ids", "attention_mask", "labels")
    for position, (token, segment, mask, label) in enumerate(
        zip(*(batch[name][0].tolist() for name in columns), strict=True)
    ):
        wanted = "" if label < 0 else f"  {tokenizer.convert_ids_to_tokens(label)}"
        name = tokenizer.convert_ids_to_tokens(token)
        lines.append(f"{position:8}  {name:<8}  {token:9}{segment:16}{mask:16}{label:8}{wanted}")
    show(f"batch: B = {examples}, S = {length}, {counts}; the first example", *lines)


def show_stages(stages: dict[str, Tensor], batch: dict[str, Tensor], tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())

    def title(name: str, more: str = "") -> str:
        return f"{name} {tuple(stages[name].shape)}{more}".replace(" ()", "")

    show(title("embeddings", ", the first example"), *table(tokens, stages["embeddings"][0]))
    name = "layer 1: attention weights"
    show(
        title(name, ", the first example's, in the first head"),
        " " * 8 + "".join(f"{token.strip('[]')[:5]:>6}" for token in tokens),
        *table(tokens, stages[name][0, 0]),
    )
    for name in ("layer 1: after attention", "layer 1: after feed-forward", "layer 2: after feed-forward"):
        show(title(name, ", the first example's first three tokens"), *table(tokens[:3], stages[name][0, :3]))

    probabilities, labels = stages["MLM logits"].softmax(-1), batch["labels"]  # (B, S, V), (B, S)
    lines = ["example  position  label     probability   −ln     most probable"]
    for example, position in (labels != -100).nonzero().tolist():
        wanted, likely = labels[example, position].item(), probabilities[example, position].argmax().item()
        probability = probabilities[example, position, wanted].item()
        wanted, likely = tokenizer.convert_ids_to_tokens([wanted, likely])
        lines.append(
            f"{example:7}  {position:8}  {wanted:<8}  {probability:11.3f}  {-math.log(probability):5.2f}     {likely}"
        )
    show(title("MLM logits", ", at the M masked positions"), *lines, f"MLM loss: {stages['MLM loss']:.3f}")

    lines = ["example  probability of 0  probability of 1  label   −ln"]
    for example, label in enumerate(batch["next_sentence_label"].tolist()):
        both = stages["NSP logits"][example].softmax(-1).tolist()
        lines.append(f"{example:7}  {both[0]:16.3f}  {both[1]:16.3f}  {label:5}  {-math.log(both[label]):4.2f}")
    show(title("NSP logits"), *lines, f"NSP loss: {stages['NSP loss']:.3f}")


def main() -> None:
    dataset = make_dataset()
    batch, (model, bert) = make_batch(dataset), make_models()
    stages = plain_stages(model, batch)
    show_text(dataset)
    show_pairs(dataset)
    show_batch(batch, dataset.tokenizer)
    show_stages(stages, batch, dataset.tokenizer)
    lines = [f"loss: {stages['loss']:.3f}"]
    for name, other in (("scratch_bert", model), ("transformers", bert)):
        difference = largest_difference(stages, model_stages(other, batch), batch["attention_mask"])
        lines.append(f"largest difference from {name} at any of {len(stages)} stages below 1e-5: {difference < 1e-5}")
    show("both objectives", *lines)


if __name__ == "__main__":
    main()
