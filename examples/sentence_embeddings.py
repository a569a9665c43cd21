"""Sentence embeddings of a pretrained run, the means of its tokens' states, by sentence-transformers (extra `integrations`).

python examples/sentence_embeddings.py [RUN]
"""

import sys
import tempfile

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import scratch_bert
from scratch_bert.text.builtin import builtin_documents


if len(sys.argv) > 1:
    run = sys.argv[1]
else:  # a short one
    run = tempfile.mkdtemp()
    scratch_bert.pretrain(builtin_documents(), output_dir=run, cache_dir=f"{run}/cache", max_steps=150)

states = Transformer(run)
model = SentenceTransformer(modules=[states, Pooling(states.get_embedding_dimension(), "mean")])
sentences = [
    "Return the number of items in the list.",
    "Return a list of all the items in the dictionary.",
    "The file is opened in text mode.",
    "Open a file and read its contents as text.",
]
similarities = model.similarity(model.encode(sentences), model.encode(sentences))
for number, sentence in enumerate(sentences):
    print("  ".join(f"{similarity:.2f}" for similarity in similarities[number]), f"  {sentence}")
