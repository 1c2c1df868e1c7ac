"""A frozen language model as a partner, in the main process, with its own tokenizer and dialogue format."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import numpy as np
from stable_baselines3.common.utils import get_device
from transformers import PreTrainedModel

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.pretrained import has_random_weights
from rl4dialog.core.protocols import PartnerService
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName
from rl4dialog.envs.conversation import OutsidePartner
from rl4dialog.policies.answering import (
    answer_lengths,
    answer_settings,
    answering_class,
    answering_policy,
    sampled_answers,
)
from rl4dialog.policies.base import Precision
from rl4dialog.policies.models import embedding_rows, load_language_model, named_model_positions, to_bfloat16
from rl4dialog.text.chat_template import ChatTemplate
from rl4dialog.text.end_of_turn import EndOfTurn, end_of_sequence_ids
from rl4dialog.text.tokenizer import build_tokenizer


class LanguageModelPartner(PartnerService):
    """A frozen language model, which answers all environments in one batch.

    Args:
        model_name: Folder or hub id of the model, such as ``model/`` of a run folder. A run folder itself also sets the
            arguments below; one that learned the partner's side of a log needs no others.
        tokenizer_name: Folder or hub id of its tokenizer; by default that of the model.
        architecture: ``causal`` for decoder-only models, ``seq2seq`` for encoder-decoders.
        format: Format of its prompts: ``eou`` or ``chat_template``. Its own utterances are those of the assistant.
        persona_key: Key of its persona in the samples' ``meta_data``: a text or a list of sentences; samples without
            the key have none.
        generation_kwargs: Sampling settings; by default it samples from the whole distribution.
        max_prompt_length: P, passed by the run.
        max_length: Maximum number of tokens of an answer, passed by the run.
        needs_persona: Whether samples without the key are an error.
        ending: What it says to end the conversation, which the agent does not hear.
        precision: ``fp32``, or ``bf16`` for weights in bfloat16, which is faster where the hardware has it.
    """

    _who, _length_key = "partner 'language_model'", "env.args.max_partner_length"

    def __init__(
        self,
        model_name: str,
        tokenizer_name: str | None = None,
        architecture: Literal["causal", "seq2seq"] = "causal",
        format: FormatName = "eou",
        persona_key: str = "partner_persona",
        generation_kwargs: dict[str, Any] | None = None,
        max_prompt_length: Count = 128,
        max_length: Count = 32,
        needs_persona: bool = False,
        ending: str | None = None,
        precision: Precision = "fp32",
    ) -> None:
        if has_random_weights(model_name):
            raise ConfigError(
                f"{self._who} cannot be {model_name!r}, which has random weights; pass a folder, such as "
                f"model/ of a run folder, or a hub id"
            )
        settings = answer_settings(self._who, generation_kwargs)  # checked before anything is loaded
        positions = named_model_positions(model_name) if architecture == "causal" else None
        lengths = answer_lengths(
            self._who, model_name, positions, settings, max_prompt_length, max_length, self._length_key
        )
        tokenizer = build_tokenizer(tokenizer_name or model_name)
        auto_class = answering_class(architecture == "seq2seq").auto_class
        model = load_language_model(model_name, tokenizer, 1, lengths[1], auto_class)
        dialogue_format = DialogueFormat(format, None, ChatTemplate(tokenizer), in_conversation=True)
        end_of_turn = EndOfTurn(
            tokenizer,
            end_of_sequence_ids(tokenizer, model.config, model.generation_config),
            dialogue_format.end_of_turn,
        )
        n_rows = embedding_rows(model)
        self._side = OutsidePartner(
            dialogue_format, end_of_turn, n_rows, *lengths, persona_key, needs_persona=needs_persona, ending=ending
        )
        if precision == "bf16":
            to_bfloat16(model)
        policy = answering_policy(model, end_of_turn, *lengths, generation_kwargs, precision=precision)
        self._policy = policy.to(get_device("auto"))

    @property
    def side(self) -> OutsidePartner:
        return self._side

    @property
    def language_model(self) -> PreTrainedModel:
        return self._policy.language_model

    def answers(self, observations: dict[str, np.ndarray]) -> list[Sequence[int] | None]:
        return [*sampled_answers(self._policy, observations)]

    def remembering_prompts(self) -> AbstractContextManager[None]:
        return self._policy.remembering_prompts()
