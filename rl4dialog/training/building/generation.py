"""The settings by which evaluations generate, and what is done to the replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rl4dialog.catalog import PostProcessorRegistry
from rl4dialog.core.config import RunConfig
from rl4dialog.core.config_blocks import inner_component
from rl4dialog.core.generation_blocks import GenerationBlock, evaluation_block
from rl4dialog.policies.generation import EVALUATION_ONLY
from rl4dialog.training.building.policy import policy_class


def evaluation_kwargs(config: RunConfig) -> dict[str, Any]:
    """How a run's evaluations decode: greedily where nothing says that they sample.

    NLPO's mask and conversations refuse beams; for NLPO the config's notes say so.
    """
    given = evaluation_block(config).kwargs
    kwargs = {"do_sample": False} | {key: value for key, value in given.items() if value is not None}
    return without_beams(kwargs) if policy_class(config).maskable else kwargs


def without_beams(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A ``generation_kwargs`` block without what is for the evaluation of single replies."""
    return {key: value for key, value in kwargs.items() if key not in EVALUATION_ONLY}


def build_evaluation_post_processor(config: RunConfig) -> Callable[[str], str] | None:
    """What replies go through before they are measured: that of the ``generation_kwargs`` they are generated with."""
    return build_post_processor(evaluation_block(config))


def build_post_processor(block: GenerationBlock) -> Callable[[str], str] | None:
    """The ``post_processing_fn`` of a ``generation_kwargs`` block.

    Raises:
        ConfigError: If it is neither an id nor ``{id: ..., args: ...}``, or no such post-processor or argument exists.
    """
    chosen, where = block.kwargs.get("post_processing_fn"), f"{block.where}.post_processing_fn"
    if chosen is None:
        return None
    component = inner_component(chosen, where)
    PostProcessorRegistry.check(component.id, component.args, f"{where}.args")
    return PostProcessorRegistry.get(component.id, component.args)  # type: ignore[no-any-return]
