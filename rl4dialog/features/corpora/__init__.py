"""Datapools and scores of RL4LMs that are not dialogue."""

from pathlib import Path

from rl4dialog.core.features import Feature
from rl4dialog.core.yaml_loader import packaged_yaml

FEATURE = Feature(
    "datapools and scores of RL4LMs that are not dialogue: summaries, reviews, stories, tables and translation",
    ids=packaged_yaml(Path(__file__).with_name("catalog.yaml")),
    moved={
        "rl4dialog.data.data_to_text": "rl4dialog.features.corpora.data_to_text",
        "rl4dialog.data.documents": "rl4dialog.features.corpora.documents",
        "rl4dialog.data.translation": "rl4dialog.features.corpora.translation",
        "rl4dialog.scores.captions": "rl4dialog.features.corpora.captions",
        "rl4dialog.scores.common_gen": "rl4dialog.features.corpora.common_gen",
        "rl4dialog.scores.tables": "rl4dialog.features.corpora.tables",
    },
    configs=("common_gen", "imdb_text_continuation", "iwslt2017", "narrative_qa", "summarization", "totto"),
    page="corpora.md",
)
