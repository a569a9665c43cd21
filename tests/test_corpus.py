import pytest

from scratch_bert.corpus import builtin_documents, hold_out, read_documents, split_sentences, text_files


def test_sentences():
    text = 'One ends here. "Two," she said.\nThree, on\n two lines! (Four?) Is 5.5 five? yes. Six costs 3 e. per unit.'
    assert split_sentences(text) == [
        "One ends here.",
        '"Two," she said.',
        "Three, on two lines!",
        "(Four?)",
        "Is 5.5 five? yes.",
        "Six costs 3 e. per unit.",
    ]
    assert split_sentences(" \n ") == []
    assert split_sentences("no stop\n\n two   words. Here\n", "line") == ["no stop", "two words. Here"]
    with pytest.raises(ValueError, match="punctuation, line; got 'word'"):
        split_sentences("Text.", "word")


def test_documents_end_at_blank_lines_or_with_their_file(tmp_path):
    (tmp_path / "b.txt").write_text("One. Two.\nThree.\n \n\nFour.\r\n\r\nFive.", encoding="utf-8")
    (tmp_path / "a.txt").write_text("\ufeffNull.", encoding="utf-8")
    (tmp_path / "ignored.md").write_text("No.")
    files = text_files([tmp_path])
    assert [file.name for file in files] == ["a.txt", "b.txt"]
    assert list(read_documents(files)) == [["Null."], ["One.", "Two.", "Three."], ["Four."], ["Five."]]
    assert list(read_documents(files, "file")) == [["Null."], ["One.", "Two.", "Three.", "Four.", "Five."]]


def test_bad_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        text_files([tmp_path / "nowhere"])
    with pytest.raises(FileNotFoundError, match="holds no .txt file"):
        text_files([tmp_path])
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Eins.\n\nStraße.".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin.txt is not UTF-8 text \(byte 11 is 0xdf\).*iconv"):
        list(read_documents([latin]))
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n\n")
    with pytest.raises(ValueError, match="empty.txt holds no text"):
        list(read_documents([empty]))
    with pytest.raises(ValueError, match="blank_line, file; got 'page'"):
        list(read_documents([latin], "page"))


def test_builtin_corpus():
    documents = builtin_documents()
    sentences = [sentence for document in documents for sentence in document]
    assert len(documents) > 40
    assert 30_000 < sum(len(sentence.split()) for sentence in sentences) < 70_000
    assert documents == builtin_documents()
    text = "\n".join(sentences)
    for remnant in ("====", "****", "----", "::=", ">>> ", "\n\n"):
        assert remnant not in text, remnant
    # No paragraph in two documents: what is held out is not trained on.
    long = [s for document in documents for s in set(document) if len(s.split()) > 12]
    assert len(set(long)) > 0.99 * len(long)


def test_hold_out():
    documents = [[f"{i}."] for i in range(50)]
    train, validation = hold_out(documents, 0.1, seed=1)
    assert (len(train), len(validation)) == (45, 5)
    assert sorted(train + validation) == sorted(documents)
    assert hold_out(documents, 0.1, seed=1) == (train, validation)
    assert hold_out(documents, 0.1, seed=2) != (train, validation)
    assert hold_out(documents[:4], 0.01, seed=1)[1] != []
    assert hold_out(documents[:2], 0, seed=1)[1] == []
    with pytest.raises(ValueError, match=r"3 document\(s\).*--document_boundary.*--validation_share 0"):
        hold_out(documents[:3], 0.1, seed=1)
    with pytest.raises(ValueError, match="validation_share must be"):
        hold_out(documents, 1.0, seed=1)
