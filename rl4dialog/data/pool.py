"""The interface of all datapools, with the method names and signatures of RL4LMs' ``TextGenPool``.

Unlike in RL4LMs, references do not contain the marker that ends a reply, and an index past the end is an `IndexError`.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import math
import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rl4dialog.core.errors import DataError, nearest_hint
from rl4dialog.core.protocols import Player
from rl4dialog.core.types import PARTNER, SYSTEM_KEY, Dialogue, Frame, Prompt, Sample, Turn, reply_dialogue, system_text
from rl4dialog.data.dialogue_format import DialogueFormat

SPLITS = ("train", "val", "test")


class TextGenPool:
    """Samples of one split.

    Args:
        split: ``train``, ``val`` or ``test``.
        samples: ``replies``: one sample for each reply. ``dialogues``: one for each dialogue, of the reply to its first
            utterance, with all later utterances in the meta data as ``continuation``, for the partner ``replay``.
        context_size: Number of utterances in a prompt; a dialogue's first utterances are not used as replies.
        n_train: Number of dialogues or games in ``train``. A larger number keeps the first ones; likewise below.
        n_val: Their number in ``val``.
        n_test: Their number in ``test``.
        seed: Random seed of what is generated.
        max_size: Keep only the first samples.
        format: Format of prompts: ``eou`` or ``chat_template``.
        render_chat: Formats chat messages as a prompt; required for ``chat_template``.
        dataset_id: Hub dataset to use without ``path``.
        held_out_share: Share of ``train`` that is sampled for each of ``val`` and ``test`` that is missing.
        split_seed: Random seed of this sampling.
        index_file: Instead, by split, a JSON file with a list of the numbers of its rows in the file, from 0.
        learn: Side of logged dialogues that is learned: ``agent``, or ``partner`` for a simulated user, each
            conversation from its first utterance to its last.
        goal: Column with what the partner wants, which is in the meta data, and begins the prompts of the partner.
        people: Whose conversations are used, such as ``{by: user, groups: 4, only: [0]}``: the column, or columns, that
            name people; into how many groups without common people they are divided; and which of these are used.
    """

    # Text that ends a reply, in addition to the tokenizer's end-of-sequence tokens. References do not contain it.
    end_of_turn: str | None = None
    dialogue_format: DialogueFormat | None = None
    # Scripted speakers of the agent's side by name, for the floor and ceiling of evaluations; for tasks with a partner
    # whose rules they know. Each value creates a new player.
    players: Mapping[str, Callable[[], Player]] = {}
    repeats_prompts: bool = False  # whether all splits have the same few prompts, as games do
    has_rewards: bool = False  # whether :meth:`conversations` have rewards
    has_prompts: bool = True  # otherwise a policy cannot answer its samples
    why_empty: str = ""  # why a split can have no samples, and what to do, for messages
    # What identifies the conversations without reading them, such as the hashes of their files, as JSON values.
    source_key: Any | None = None

    def __init__(
        self,
        samples: list[Sample],
        weights: Sequence[float] | None = None,
        dialogue_format: DialogueFormat | None = None,
    ) -> None:
        """Create a pool.

        Args:
            samples: The samples, in the order of ``pool[i]``.
            weights: Relative sampling weights, which are positive numbers; equal by default.
            dialogue_format: Format of the prompts, if they are conversations; it sets the end of a reply, too.
        """
        self._samples = samples
        if dialogue_format is not None:
            self.use_format(dialogue_format)
        self._weights = [1.0] * len(samples) if weights is None else [float(weight) for weight in weights]
        if len(self._weights) != len(samples) or not all(0 < weight < math.inf for weight in self._weights):
            raise DataError(f"{len(samples)} samples need as many positive weights, not {list(self._weights)[:5]} ...")

    def use_format(self, dialogue_format: DialogueFormat) -> None:
        """Set the format of the prompts, which are checked, and the end of a reply in this format."""
        dialogue_format.check(self._samples)
        self.dialogue_format, self.end_of_turn = dialogue_format, dialogue_format.end_of_turn

    def frame(self) -> Frame:
        """Return the markup around the utterances of a conversation; without a format, each is on a separate line."""
        if self.dialogue_format is not None:
            # Where a system message is not in its place, the prompt has no known opening.
            with_system = any(isinstance(prompt, Prompt) and len(prompt.opening) != 1 for prompt in self._prompts())
            return self.dialogue_format.frame(with_system)
        return Frame.plain(self.end_of_turn)

    def _prompts(self) -> Iterable[str]:
        """All prompts, each at least once."""
        return (sample.prompt_or_input_text for sample in self._samples)

    @classmethod
    @abstractmethod
    def prepare(cls, split: str, *args: Any, **kwargs: Any) -> TextGenPool:
        """Load one split, with arguments of the subclass.

        Arguments with the names in the class's docstring mean the same in all pools, unless a pool says otherwise.
        A split that is unknown or empty, and data that is missing or malformed, are a `DataError`.
        """
        raise NotImplementedError

    @classmethod
    def note_on(cls, args: Mapping[str, Any]) -> str:
        """What a user should know of the arguments of :meth:`prepare`, such as that one has no effect; or nothing."""
        return ""

    @property
    def remark(self) -> str:
        """What is said after the number of samples."""
        return ""

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Sample, float]:
        return self._samples[index], self._weights[index]

    def __iter__(self) -> Iterator[tuple[Sample, float]]:
        return zip(self._samples, self._weights, strict=True)

    def conversations(self) -> Iterator[Dialogue]:
        """Yield conversations to learn from, in the order of the samples.

        By default each reference is a conversation of one turn, or of all turns if the sample has a ``continuation``,
        in which both sides alternate. Empty references are left out. Rewards are 0. Texts before the first utterance,
        such as a persona, are in the meta data under `SYSTEM_KEY`.
        """
        for sample in self._samples:
            info = dict(sample.meta_data or {})
            if system := system_text(sample.prompt_or_input_text):
                info[SYSTEM_KEY] = system
            later = tuple(Turn(text, i % 2) for i, text in enumerate(info.pop("continuation", ())))
            for number, reference in enumerate(sample.references[:1] if later else sample.references):
                if not reference.strip():
                    continue
                id = sample.id if len(sample.references) == 1 or later else f"{sample.id}_{number}"
                found = reply_dialogue(id, sample.prompt_or_input_text, reference, info)
                prompt = sample.prompt_or_input_text
                yield replace(found, turns=(*found.turns, *later), ended_by=None, prompt=prompt)

    def prompted_conversations(self) -> Iterator[Dialogue]:
        """Yield the :meth:`conversations` with prompts in the pool's format; what the partner says first is given."""
        return map(self._prompted, self.conversations())

    def _prompted(self, dialogue: Dialogue) -> Dialogue:
        if dialogue.prompt is not None:
            return dialogue
        if dialogue.n_given == 0 and dialogue.turns and dialogue.turns[0].speaker == PARTNER:
            dialogue = replace(dialogue, n_given=1)
        given, form = [turn.text for turn in dialogue.turns[: dialogue.n_given]], self.dialogue_format
        if form is None:
            return replace(dialogue, prompt="\n".join(given))
        return replace(dialogue, prompt=form.prompt(form.context(given), dialogue.meta_data.get(SYSTEM_KEY)))

    def sample(self) -> Sample:
        """Draw one sample by weight, with Python's global random generator."""
        return random.choices(self._samples, self._weights)[0]

    def split(self, split_ratios: list[float]) -> list[TextGenPool]:
        """Split the pool into consecutive parts of these shares; samples beyond their sum, at most 1, are dropped."""
        if any(ratio < 0 for ratio in split_ratios) or sum(split_ratios) > 1 + 1e-9:
            raise DataError(f"split ratios must not be negative and must sum to at most 1, not {split_ratios}")
        parts: list[TextGenPool] = []
        start, total = 0, 0.0
        for ratio in split_ratios:
            total += ratio
            # The running sum is rounded, not each share, so that ratios with a sum of 1 lose no sample.
            end = min(len(self), round(len(self) * total))
            part = copy.copy(self)
            part._samples, part._weights = self._samples[start:end], self._weights[start:end]
            parts.append(part)
            start = end
        return parts


class RewrittenPool(TextGenPool):
    """The samples of another pool, each rewritten. Its conversations stay as they are."""

    def __init__(self, pool: TextGenPool, rewrite: Callable[[Sample], Sample]) -> None:
        super().__init__([rewrite(sample) for sample, _ in pool], [weight for _, weight in pool])
        self.end_of_turn, self.dialogue_format = pool.end_of_turn, pool.dialogue_format
        self.players, self.has_rewards, self.source_key = pool.players, pool.has_rewards, pool.source_key
        self._pool, self.repeats_prompts = pool, pool.repeats_prompts

    def prompted_conversations(self) -> Iterator[Dialogue]:
        return self._pool.prompted_conversations()


def check_split(split: str) -> None:
    """Raise a `DataError` unless the split is one of ``train``, ``val`` and ``test``."""
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}{nearest_hint(split, SPLITS)} (the splits are {', '.join(SPLITS)})")


def size_of(split: str, n_train: int, n_val: int, n_test: int) -> int:
    """The number of this split, whose name is checked."""
    check_split(split)
    return {"train": n_train, "val": n_val, "test": n_test}[split]


def hub_split(split: str) -> str:
    """The name of a split in hub datasets: ``validation`` for ``val``, otherwise unchanged."""
    check_split(split)
    return "validation" if split == "val" else split


def limit_samples(samples: Iterable[Sample], max_size: int | None, pool: str, split: str, source: str) -> list[Sample]:
    """The first samples of a split, at least one; `pool`, `split` and `source` are for the message if there is none."""
    kept = list(itertools.islice(samples, max_size))
    if not kept:
        raise DataError(
            f"datapool {pool!r} has no samples in split {split!r} (source: {source}): the data is empty, or all "
            f"its dialogues are too short."
        )
    return kept


@functools.cache
def built_world(task: Callable[..., Any], args: str) -> Any:
    """Build the world of a task once per process; `args` are the task's arguments as JSON, with sorted keys."""
    return task(**json.loads(args))


@dataclass
class Data:
    """The samples of a run, how its dialogue format ends a turn, and what returns the world of its task."""

    pools: dict[str, TextGenPool]
    turn_marker: str | None
    world: Callable[[], Any] | None = None

    def samples(self, split: str, limit: int | None = None) -> list[Sample]:
        """Samples of a split, the first ``limit`` of them."""
        return [sample for sample, _ in self.pools[split]][:limit]

    @property
    def persona(self) -> str | None:
        """The text before the first utterance of train prompts, such as a system message; ``None`` if they differ."""
        found = {system_text(sample.prompt_or_input_text) for sample in self.samples("train")}
        return found.pop() if len(found) == 1 else None

    def personas(self, key: str) -> list[tuple[str, ...]]:
        """Lists of texts under a key of the meta data, such as ``persona``, in the train split; each once, in order."""
        found = ((sample.meta_data or {}).get(key) for sample in self.samples("train"))
        return list(dict.fromkeys(tuple(texts) for texts in found if isinstance(texts, list | tuple) and texts))
