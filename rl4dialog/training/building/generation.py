"""Generation settings and post-processing for evaluations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl4dialog.catalog import PostProcessorRegistry
from rl4dialog.core.config import GenerationBlock, TextConfig
from rl4dialog.core.config_blocks import inner_component
from rl4dialog.policies.generation import without_beams
from rl4dialog.training.building.policy import policy_class


def evaluation_kwargs(config: TextConfig) -> dict[str, Any]:
    """Generation settings of a run's evaluations. Decoding is greedy unless sampling is enabled.

    Beam search is not available under NLPO's mask (see the config's notes) or in conversations.
    """
    given = config.evaluation_block.kwargs
    kwargs = {"do_sample": False} | {key: value for key, value in given.items() if value is not None}
    return without_beams(kwargs) if policy_class(config).maskable else kwargs


def build_evaluation_post_processor(config: TextConfig) -> Callable[[str], str] | None:
    """Build the post-processor of evaluation replies, from the ``generation_kwargs`` that generate them."""
    return build_post_processor(config.evaluation_block)


def build_post_processor(block: GenerationBlock) -> Callable[[str], str] | None:
    """Build the ``post_processing_fn`` of a ``generation_kwargs`` block."""
    chosen, where = block.kwargs.get("post_processing_fn"), f"{block.where}.post_processing_fn"
    if chosen is None:
        return None
    component = inner_component(chosen, where)
    PostProcessorRegistry.check(component.id, component.args, f"{where}.args")
    return PostProcessorRegistry.get(component.id, component.args)  # type: ignore[no-any-return]
