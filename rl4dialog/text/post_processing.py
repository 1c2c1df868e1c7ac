"""Post-processing of generated replies before evaluation: ``generation_kwargs.post_processing_fn``.

Rollouts are never post-processed: rewards and training use the sampled text. Post-processors are those of RL4LMs.
"""

from __future__ import annotations

from rl4dialog.text.words import split_sentences


def three_sentence_summary(text: str) -> str:
    """The first three sentences, one per line."""
    return "\n".join(split_sentences(text)[:3])
