"""A trained policy from a run folder: replies, values, log-probabilities and scores, without training.

The language model is ``model/``, or that of a checkpoint. The critic stands only in checkpoints, so values are those of
a checkpoint, whose language model and critic belong together. Data is read only where a reward needs it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.utils import get_device
from torch import Tensor
from transformers import PreTrainedModel

from rl4dialog.catalog import AlgorithmRegistry, DataPoolRegistry
from rl4dialog.core.config import OnPolicyConfig, RunConfig
from rl4dialog.core.errors import ConfigError, DataError, ModelError, RunFolderError
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.run_data import Data
from rl4dialog.functional.replies import Replies
from rl4dialog.inference.saved_mask import first_model, masked_policy
from rl4dialog.inference.saved_run import find_checkpoint, read_run_config
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.generation import NOT_IN_CONVERSATIONS, GenerationSettings
from rl4dialog.policies.lora import ADAPTER_FOLDER
from rl4dialog.policies.models import load_language_model
from rl4dialog.policies.saving import CRITIC_FILE, load_state_beside
from rl4dialog.rewards.scoring import ReplyScores, score_replies
from rl4dialog.runs.provenance import read_provenance
from rl4dialog.runs.results import is_complete
from rl4dialog.runs.run_folder import MODEL_FOLDER
from rl4dialog.text.chat_template import ChatTemplate
from rl4dialog.text.tokenizer import build_tokenizer, encode_prompt
from rl4dialog.training.building.data import build_data
from rl4dialog.training.building.generation import evaluation_kwargs, without_beams
from rl4dialog.training.building.inference_policy import build_inference_policy
from rl4dialog.training.building.language_model import build_language_model
from rl4dialog.training.building.lengths import run_lengths
from rl4dialog.training.building.policy import policy_class
from rl4dialog.training.building.rewards import build_reward_parts
from rl4dialog.training.building.texts import Texts
from rl4dialog.training.building.toolkit import build_toolkit
from rl4dialog.training.evaluation import generate_texts
from rl4dialog.training.supervised.examples import encode_reply

_logger = logging.getLogger(__name__)
Checkpoint = str | int | None


def load_policy(run: str | Path, checkpoint: Checkpoint = None, trust: bool = False) -> LoadedPolicy:
    """Load the policy of a run.

    Args:
        run: The run folder, wherever it lies now.
        checkpoint: ``None`` for the model at the run's end; else the number of an iteration, ``"last"`` or ``"best"``.
        trust: Whether code that the run's config names may be run: its ``imports``, and programs of metrics.

    Raises:
        RunFolderError: If the folder holds no run, no model, or no such checkpoint.
        ConfigError: If the run's config names code without ``trust``, or what it imports cannot be imported.
        ModelError: If the model cannot be loaded.
    """
    folder = Path(run).expanduser()
    return load_run(read_run_config(folder, trust=trust), folder, checkpoint)


def load_run(config: RunConfig, run: Path, checkpoint: Checkpoint = None) -> LoadedPolicy:
    """Load the policy of a run whose config has been read; see :func:`load_policy`."""
    chosen = None if checkpoint is None else find_checkpoint(run, checkpoint)
    folder = (chosen or run) / MODEL_FOLDER
    if not folder.is_dir():
        raise RunFolderError(f"{folder} is missing: the run is not complete; one of its checkpoints may be loaded")
    if chosen is None and not is_complete(run):
        _logger.warning(
            "the run in %s is not complete, and its model/ is that of an earlier end, before it went on; the newest "
            "checkpoint is newer (--checkpoint last)",
            run,
        )
    return LoadedPolicy(config, folder, run, chosen)


class LoadedPolicy:
    """A policy that was trained.

    Args:
        config: Of its run.
        model: Folder (or hub id) of the language model and its tokenizer.
        run: The run folder, for what else is in it; ``None`` if there is none.
        checkpoint: Folder of the checkpoint that the model is from, if it is from one.
    """

    def __init__(
        self, config: RunConfig, model: str | Path, run: Path | None = None, checkpoint: Path | None = None
    ) -> None:
        self.config, self.run, self._checkpoint = config, run, checkpoint
        self.tokenizer = build_tokenizer(**{**config.tokenizer.model_dump(), "model_name": str(model)})
        self.lengths = run_lengths(config, self.tokenizer, Data({}, self.turn_marker), str(model))
        trained = self._language_model(model)
        if policy_class(config).maskable:
            self.policy = masked_policy(self._around, trained, config, run, checkpoint)
        else:
            self.policy = self._around(trained)

    @functools.cached_property
    def data(self) -> Data:
        """The samples of the run's datapool."""
        return build_data(self.config, self.tokenizer)

    @property
    def texts(self) -> Texts:
        """Tokenizer, samples and lengths."""
        return Texts(self.tokenizer, self.data, self.lengths)

    @property
    def turn_marker(self) -> str | None:
        """Text that ends a reply in the run's data."""
        recorded = read_provenance(self.run) if self.run is not None else {}
        if "turn_marker" in recorded:
            return str(recorded["turn_marker"]) if recorded["turn_marker"] else None
        return self.data.turn_marker

    @property
    def generation_kwargs(self) -> dict[str, Any]:
        """How the run's evaluations sample."""
        return evaluation_kwargs(self.config)

    @property
    def dialogue_format(self) -> DialogueFormat | None:
        """How the run's datapool writes dialogues; ``None`` if it holds none."""
        args = {**DataPoolRegistry.defaults(self.config.datapool.id), **self.config.datapool.args}
        if args.get("format") is None:
            return None
        return DialogueFormat(args["format"], args.get("context_size"), ChatTemplate(self.tokenizer))

    @functools.cached_property
    def reference_policy(self) -> LMActorCriticPolicy:
        """A policy whose reference is the one that the run's KL divergence was measured to.

        Raises:
            ModelError: If the model that the run began with cannot be had any more.
        """
        first = first_model(self.config, self.run) if self.run is not None else None
        if first is None:
            raise ModelError("the model that the run began with is not there, so there is no KL divergence to it")
        return self._around(first)

    def chat(
        self,
        text: str,
        history: Sequence[str] = (),
        persona: str | None = None,
        seed: int | None = None,
        **generation_kwargs: Any,
    ) -> str:
        """Reply in a conversation, as ``agent.chat`` of OpenRL does.

        Args:
            text: What the user says.
            history: What both said before, the oldest first; the caller keeps it, and adds ``text`` and the reply.
            persona: Who the model is to be.
            seed: Of the sampling.
            generation_kwargs: Each in place of the same setting of the run's evaluations.

        Raises:
            ConfigError: If the run's data are no dialogues, or a setting of the sampler is unknown or asks for beams.
        """
        GenerationSettings.from_kwargs(generation_kwargs, only_sampling=NOT_IN_CONVERSATIONS)
        dialogue_format = self.dialogue_format
        if dialogue_format is None:
            raise ConfigError(f"datapool {self.config.datapool.id!r} holds no dialogues, so there is no chat")
        prompt = dialogue_format.prompt(dialogue_format.context([*history, text]), persona)
        kwargs = {**without_beams(self.generation_kwargs), **generation_kwargs}
        return self._generate([prompt], None, seed, kwargs)[0]

    def generate(
        self, prompts: Sequence[str], batch_size: int | None = None, seed: int | None = None, **generation_kwargs: Any
    ) -> list[str]:
        """Reply to prompts.

        Args:
            prompts: As the datapool writes them.
            batch_size: Of how many at once; by default as in the run's evaluations.
            seed: Of the sampling; torch's random state is then as before afterwards.
            generation_kwargs: Each in place of the same setting of the run's evaluations (:attr:`generation_kwargs`).

        Raises:
            ConfigError: If one of them is unknown.
        """
        return self._generate(prompts, batch_size, seed, {**self.generation_kwargs, **generation_kwargs})

    def _generate(
        self, prompts: Sequence[str], batch_size: int | None, seed: int | None, kwargs: dict[str, Any]
    ) -> list[str]:
        size = batch_size or self.config.train_evaluation.eval_batch_size
        ids = [self.prompt_ids(prompt) for prompt in prompts]
        devices = [self.policy.device] if self.policy.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices, enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            batches = [ids[start : start + size] for start in range(0, len(ids), size)]
            return [reply for batch in batches for reply in generate_texts(self.policy, batch, kwargs)]

    def log_probs(self, prompts: Sequence[str], replies: Sequence[str]) -> list[list[float]]:
        """Log-probability of each token of each reply, the end of the reply included, in nats."""
        return self._per_token(prompts, replies, self.policy, self.policy.sequence_log_probs)

    def values(self, prompts: Sequence[str], replies: Sequence[str]) -> list[list[float]]:
        """The critic's value before each token of each reply, the end of the reply included.

        Raises:
            RunFolderError: If the run has no checkpoint, in which a critic could be.
            ModelError: If its algorithm has no critic.
        """
        policy = self.policy_with_critic
        with torch.no_grad():
            return self._per_token(prompts, replies, policy, policy.predict_sequence_values)

    def scores(
        self,
        prompts: Sequence[str],
        replies: Sequence[str],
        references: Sequence[Sequence[str]] | None = None,
        meta_infos: Sequence[dict[str, Any]] | None = None,
        on_error: str = "raise",
    ) -> ReplyScores:
        """The run's reward of whole replies, and its parts; weights that change are those of the last iteration.

        Args:
            prompts: One per reply, like all that follow.
            replies: Each is the last of its episode.
            references: For rewards that compare with some.
            meta_infos: For rewards that read the samples' meta data.
            on_error: With ``mask``, what fails is NaN in place of an error.

        Raises:
            ConfigError: If the run has no reward.
            RewardError: If the reward fails.
        """
        _check_as_many(prompts, replies=replies, references=references, meta_infos=meta_infos)
        n = len(prompts)
        return score_replies(
            self._reward_parts,
            list(prompts),
            list(replies),
            [list(texts) for texts in references] if references is not None else [[] for _ in range(n)],
            list(meta_infos) if meta_infos is not None else [{} for _ in range(n)],
            range(n),
            on_error=on_error,
            iteration=self.config.n_iters or 1,
            tokenizer=self.tokenizer,
        )

    def prompt_ids(self, prompt: str) -> list[int]:
        """Token ids of a prompt, cut as in training."""
        lengths = self.lengths
        return encode_prompt(self.tokenizer, prompt, lengths.prompt, lengths.truncation_side, lengths.turn_end)

    def _per_token(
        self,
        prompts: Sequence[str],
        replies: Sequence[str],
        policy: LMActorCriticPolicy,
        numbers_of: Callable[[Replies], Tensor],
    ) -> list[list[float]]:
        """What a policy says about each token of replies."""
        _check_as_many(prompts, replies=replies)
        if not prompts:
            return []
        texts = (reply.strip() for reply in replies)
        responses = [encode_reply(self.tokenizer, text, self.turn_marker, self.lengths.reply) for text in texts]
        batch = Replies.from_ids([self.prompt_ids(prompt) for prompt in prompts], responses, policy.device)
        numbers = batch.computed(numbers_of)[batch.response_mask]
        return [row.tolist() for row in batch.per_row(numbers)]

    @functools.cached_property
    def policy_with_critic(self) -> LMActorCriticPolicy:
        """The policy of the chosen or the newest checkpoint, with its critic.

        Raises:
            RunFolderError: If there is no checkpoint.
            ModelError: If the run's algorithm has no critic.
        """
        config = self.config
        if not isinstance(config, OnPolicyConfig) or not AlgorithmRegistry.resolve(config.alg.id).needs_critic:
            raise ModelError(f"the run's algorithm, {self.config.alg.id}, has no critic, so there are no values")
        folder = self._newest_checkpoint()
        if folder is None:
            raise RunFolderError(
                f"{self.run or 'the model'} holds no critic, so there are no values: model/ is the language model "
                f"alone, and there is no checkpoint; set train_evaluation.save_every in a run"
            )
        critic = config.alg.policy.args.model_dump().get("critic", "separate")
        lora = self.config.lora
        if lora is None:
            policy = self._around(self._language_model(folder / MODEL_FOLDER), critic=critic)
            load_state_beside(policy, folder, CRITIC_FILE)
            return policy
        # The critic's adapters belong to the base model.
        base = build_language_model(self.config, self.texts)
        policy = self._around(base, critic=critic, lora=lora)
        assert policy.lora is not None
        policy.lora.load(folder / MODEL_FOLDER / ADAPTER_FOLDER)
        load_state_beside(policy, folder, CRITIC_FILE)
        return policy

    def _language_model(self, name: str | Path) -> PreTrainedModel:
        auto_class = policy_class(self.config).auto_class
        return load_language_model(str(name), self.tokenizer, self.lengths.prompt, self.lengths.reply, auto_class)

    def _around(self, model: PreTrainedModel, **changes: Any) -> LMActorCriticPolicy:
        policy = build_inference_policy(self.config, self.tokenizer, self.turn_marker, model, self.lengths, **changes)
        return policy.to(get_device("auto"))

    def _newest_checkpoint(self) -> Path | None:
        """The chosen checkpoint, or the newest of the run, if there is one."""
        if self._checkpoint is not None or self.run is None:
            return self._checkpoint
        try:
            return find_checkpoint(self.run)
        except RunFolderError:
            return None

    @functools.cached_property
    def _reward_parts(self) -> list[Any]:
        if self.config.reward_fn is None or not self.config.has_rollouts:
            raise ConfigError("the run has no reward_fn, so there are no scores")
        toolkit = build_toolkit(self.config, self.tokenizer, self.data)
        return build_reward_parts(self.config, toolkit)


def _check_as_many(prompts: Sequence[Any], **others: Sequence[Any] | None) -> None:
    for name, values in others.items():
        if values is not None and len(values) != len(prompts):
            raise DataError(f"there are {len(prompts)} prompts and {len(values)} {name}; each prompt needs one")
