"""Generates replies to a file of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.yaml_loader import apply_overrides
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.inference.prompt_files import ReplyFile, read_prompts
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.runs.progress import Progress


def reply_to_file(
    loaded: LoadedPolicy, prompts: Path, replies: Path, overrides: Sequence[str] = (), batch_size: int | None = None
) -> int:
    """Write a reply to each prompt of a file, except prompts that already have one.

    Every batch has its own seed, so an interruption does not change any reply.

    Args:
        loaded: The policy.
        prompts: Prompts file; see :func:`~rl4dialog.inference.prompt_files.read_prompts`.
        replies: Output ``.jsonl`` file; each line has the fields of the prompt's line, ``prompt`` and ``reply``.
        overrides: Overrides of the sampling settings of the run's evaluations, as ``key=value``.
        batch_size: Prompts per batch; by default as in the run's evaluations.

    Returns:
        Number of newly written replies.
    """
    kwargs = apply_overrides(dict(loaded.generation_kwargs), overrides)
    GenerationSettings.from_kwargs(kwargs)
    lines = read_prompts(prompts, loaded.dialogue_format, loaded.persona)
    size = batch_size or loaded.config.train_evaluation.eval_batch_size
    with ReplyFile(replies, lines) as file:
        n_before = file.n_done
        with Progress("Replying", "prompt", len(lines), n_before, line_every_s=30.0) as progress:
            for start in range(n_before - n_before % size, len(lines), size):
                batch = [line.prompt for line in lines[start : start + size]]
                seed = derive_seed(loaded.config.seed, "replies", start)
                answers = loaded.generate(batch, batch_size=size, seed=seed, **kwargs)
                for reply in answers[file.n_done - start :]:
                    file.append(reply)
                    progress.advance()
        return file.n_done - n_before
