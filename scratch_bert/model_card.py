"""The model card of a pretraining run, filled from the run itself."""

from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData


def render_model_card(template: Path, **fields) -> ModelCard:
    """`template` (a Jinja file such as the project's model_card.md) with its `fields` filled in.

    Raises `jinja2.UndefinedError` if the template uses a field that is not given.
    """
    card_data = ModelCardData(
        library_name="transformers",
        pipeline_tag="fill-mask",
        tags=["bert", "scratch_bert", "fill-mask", "next-sentence-prediction"],
    )
    return ModelCard.from_template(card_data, template_path=str(template), **fields)
