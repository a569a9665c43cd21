"""Text of any kind as documents and sentences: tables, formats, the built-in corpus."""

UNK_TOKEN = "[UNK]"  # in a text: a word that the corpus itself replaces, as WikiText-2 by <unk>
MAX_WORD = 100  # characters; BERT's WordPiece turns a longer word into one unknown token
MAX_PIECE = 20_000  # characters of text to process at once: time and memory grow faster than the length
