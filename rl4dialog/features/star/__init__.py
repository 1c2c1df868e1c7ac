"""Conversations of people with written goals and checkable calls (STAR)."""

from pathlib import Path

from rl4dialog.core.features import Feature
from rl4dialog.core.yaml_loader import packaged_yaml

FEATURE = Feature(
    "conversations of people with written goals and checkable calls (STAR)",
    needs=("tools",),
    ids=packaged_yaml(Path(__file__).with_name("catalog.yaml")),
    configs=("star", "benchmarks/star_partners.yml", "benchmarks/star_cross_play.yml"),
    page=("star.md", "star_partners.md"),
)
