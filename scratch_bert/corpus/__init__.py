"""Text as token ids: tokenizers, the cache, the memory-mapped corpus, its overlap with other text."""
