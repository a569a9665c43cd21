from concurrent.futures import ThreadPoolExecutor

from scratch_bert.pretraining.arguments import DataArguments
from scratch_bert.pretraining.load import text_sources, trained_tokenizer


def test_runs_at_the_same_time_share_the_cache(documents, tmp_path):
    """Both train the tokenizer; the one that ends later takes what the other has left."""
    (tmp_path / "text.txt").write_text("\n\n".join("\n".join(document) for document in documents))
    args = DataArguments(train_file=[str(tmp_path / "text.txt")], cache_dir=str(tmp_path / "cache"), vocab_size=1000)
    source, _ = text_sources(args)
    with ThreadPoolExecutor(4) as pool:
        tokenizers = list(pool.map(lambda _: trained_tokenizer(args, source), range(4)))
    assert all(tokenizer.get_vocab() == tokenizers[0].get_vocab() for tokenizer in tokenizers)
    assert len(list((tmp_path / "cache").iterdir())) == 1
