"""Fills the cache with what a run needs, before it starts."""

from __future__ import annotations

from rl4dialog.core.config import OfflineConfig, TextConfig
from rl4dialog.training.building.language_model import build_language_model
from rl4dialog.training.building.offline import build_log, learns_scores
from rl4dialog.training.building.policy import build_end_of_turn
from rl4dialog.training.building.rewards import build_scorer
from rl4dialog.training.building.texts import build_texts
from rl4dialog.training.building.toolkit import build_toolkit


def fill_cache(config: TextConfig) -> None:
    """Build and cache the intent classifier, the warm start, and the encoded log of an offline run."""
    texts = build_texts(config)
    toolkit = build_toolkit(config, texts.tokenizer, texts.data)
    model = build_language_model(config, texts)
    if isinstance(config, OfflineConfig):
        end_of_turn = build_end_of_turn(config, texts.tokenizer, texts.data.turn_marker, model)
        build_log(config, texts, end_of_turn, build_scorer(config, toolkit) if learns_scores(config, texts) else None)
