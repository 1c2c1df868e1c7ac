"""What is done to generated replies before they are measured: ``generation_kwargs.post_processing_fn``.

Rollouts are never post-processed: what is rewarded and learned is what was sampled. Post-processors as in RL4LMs.
"""

from __future__ import annotations

from rl4dialog.text.words import split_sentences


def three_sentence_summary(text: str) -> str:
    """The first three sentences, a line each."""
    return "\n".join(split_sentences(text)[:3])
