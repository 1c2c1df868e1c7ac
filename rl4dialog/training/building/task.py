"""The task of a run that trains a language model: the world of its dialogues."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

from rl4dialog.catalog import TaskRegistry
from rl4dialog.core.config_blocks import ComponentConfig
from rl4dialog.tasks.dialogue_acts.world import World, built_world


def task_world(task: ComponentConfig | None) -> Callable[[], World] | None:
    """Return what returns the world of a task, built once per process."""
    if task is None:
        return None
    return functools.partial(built_world, TaskRegistry.resolve(task.id), json.dumps(task.args, sort_keys=True))
