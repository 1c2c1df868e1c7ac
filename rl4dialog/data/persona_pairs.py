"""Pairs of personas, for conversations of two people who do not know each other."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Literal

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.persona_chat import PersonaSide, persona_text
from rl4dialog.data.persona_files import Persona, PersonaPair, distinct, read_personas
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples
from rl4dialog.data.splits import HeldOutShare, SplitPath


class PersonaPairs(TextGenPool):
    """Two personas per sample, from files of convogym, ConvAI2 or Synthetic-Persona-Chat, without replies."""

    @classmethod
    def prepare(
        cls,
        split: str,
        path: SplitPath,
        order: Literal["random", "sequence"] = "random",
        max_size: Count | None = None,
        greeting: str = "hello !",
        persona_side: PersonaSide = "self",
        held_out_share: HeldOutShare | None = None,
        seed: int = 0,
        format: FormatName = "eou",
        render_chat: RenderChat | None = None,
    ) -> PersonaPairs:
        """Load one split.

        Args:
            split: ``train``, ``val`` or ``test``.
            path: convogym's CSV files, ConvAI2's text files, or Synthetic-Persona-Chat's CSV files: one file, a folder
                of files named after their splits, or a mapping from split to file. One text file is used for every
                split; one CSV file is ``train``.
            order: ``random`` draws two different personas for each sample. ``sequence`` takes the pairs of the file in
                order; if it has single personas, the first and the second one, the third and the fourth one and so on,
                each persona once, without a last one that is left over.
            max_size: Number of samples that are drawn, by default one for each persona; with ``sequence``, the maximum.
            greeting: The partner's first utterance, which the agent answers with ``first_speaker: sample``.
            persona_side: Persona in the prompt: the agent's (``self``), the partner's (``other``), ``both`` or
                ``none``.
            held_out_share: Share of the personas in ``train`` that is sampled for each of ``val`` and ``test`` that is
                missing among CSV files.
            seed: Random seed of the pairs and of the held-out personas.
            format: ``eou`` or ``chat_template``.
            render_chat: Formats chat messages as a prompt; required for ``chat_template``.

        Returns:
            A pool of samples without references. In the meta data are ``persona`` and ``partner_persona``, two lists of
            sentences, and the ``history``, which is the greeting.

        Raises:
            DataError: If a file is missing or malformed; the message contains the file and the line.
        """
        check_split(split)
        if not greeting.strip():
            raise DataError("datapool 'persona_pairs': greeting is blank; the agent needs something to answer")
        dialogue_format = DialogueFormat(format, None, render_chat)
        found = read_personas(split, path, held_out_share, seed)
        in_order = _file_pairs(found) if order == "sequence" else _drawn_pairs(found, f"{seed}/{split}", str(path))
        n_samples = max_size if order == "sequence" or max_size is not None else len(distinct(found))
        samples = (
            Sample(
                index,
                dialogue_format.prompt([greeting], persona_text(persona, partner_persona, persona_side, str(path))),
                [],
                {"history": [greeting], "persona": [*persona], "partner_persona": [*partner_persona]},
            )
            for index, (persona, partner_persona) in enumerate(in_order)
        )
        pool = cls(limit_samples(samples, n_samples, "persona_pairs", split, str(path)))
        pool.use_format(dialogue_format)
        return pool


def _file_pairs(found: Sequence[PersonaPair]) -> Iterator[tuple[Persona, Persona]]:
    if all(pair.second is not None for pair in found):
        return ((pair.first, pair.second) for pair in found if pair.second is not None)
    personas = distinct(found)
    return zip(personas[::2], personas[1::2], strict=False)


def _drawn_pairs(found: Sequence[PersonaPair], seed: str, source: str) -> Iterator[tuple[Persona, Persona]]:
    """Draw pairs without end."""
    personas = distinct(found)
    if len(personas) < 2:
        raise DataError(f"{source} has {len(personas)} persona in this split; pairs need at least two different ones")
    rng = random.Random(f"persona_pairs/{seed}")
    # random() alone has the same sequence in all versions of Python.
    for _ in itertools.count():
        one = int(rng.random() * len(personas))
        other = int(rng.random() * (len(personas) - 1))
        yield personas[one], personas[other + (other >= one)]
