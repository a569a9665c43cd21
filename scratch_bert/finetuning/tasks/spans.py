"""Labelled words → labelled spans, for predictions and for the page, whose Space has no other part of fine-tuning."""


def merge_tags(words: list[tuple[int, int, str, float]]) -> list[tuple[int, int, str, float]]:
    """Merge labelled words into spans: B-X or I-X and each following I-X are a span of X, with the lowest probability
    of its words. Words labelled O are omitted; a word with any other label is a span by itself."""
    spans: list[tuple[int, int, str, float]] = []
    current = None  # the X that an I-X would continue
    for start, end, label, probability in words:
        prefix, _, name = label.partition("-")
        in_entity = prefix in ("B", "I") and name
        if in_entity and prefix == "I" and name == current:
            spans[-1] = (spans[-1][0], end, name, min(probability, spans[-1][3]))
        elif label != "O":
            spans.append((start, end, name if in_entity else label, probability))
        current = name if in_entity else None
    return spans
