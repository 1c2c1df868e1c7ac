"""Loads a trained policy from a run folder, for replies, values, log-probabilities and scores, without training.

``model/`` contains only the trained language model, and beside it values of tokens if they guide it; checkpoints
contain the rest. So values are computed with the language model and the critic of a checkpoint. The dataset is read
only if a reward needs it.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, overload

import torch
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.utils import get_device
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl4dialog.catalog import PolicyRegistry
from rl4dialog.core.config import (
    OnPolicyConfig,
    PolicyRunConfig,
    RunConfig,
    SupervisedConfig,
    TextConfig,
    load_config,
    text_config,
)
from rl4dialog.core.errors import ConfigError, DataError, ModelError, RL4DialogError, RunFolderError
from rl4dialog.core.plugins import load_entry_points, load_imports
from rl4dialog.core.protocols import PartnerService, Toolbox
from rl4dialog.core.registry import import_object
from rl4dialog.core.reward_parts import FinishedReplies
from rl4dialog.core.run_format import config_of, why_no_values, why_removed
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.pool import Data
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.generation import NOT_IN_CONVERSATIONS, GenerationSettings, without_beams
from rl4dialog.policies.lora import ADAPTER_FOLDER
from rl4dialog.policies.models import load_language_model
from rl4dialog.policies.references import WeightCopy
from rl4dialog.policies.saving import CRITIC_FILE, MASK_FILE, TARGET_FILE, load_state_beside, weights_hash
from rl4dialog.rollouts.conversing import Conversing
from rl4dialog.runs.provenance import config_folder, read_provenance, recorded_start
from rl4dialog.runs.run_folder import CONFIG_FILE, MODEL_FOLDER, check_is_run, is_complete, read_result
from rl4dialog.runs.trust import refuse_code
from rl4dialog.scores.scoring import ReplyScores
from rl4dialog.text.prompts import History, encode_reply, with_turns
from rl4dialog.text.tokenizer import build_tokenizer
from rl4dialog.training.assembly import Assembly, part
from rl4dialog.training.building.conversations import build_conversing
from rl4dialog.training.building.language_model import build_language_model
from rl4dialog.training.building.policy import (
    algorithm_class,
    build_inference_policy,
    evaluation_kwargs,
    inference_arguments,
    is_guided,
    policy_class,
)
from rl4dialog.training.building.texts import (
    Lengths,
    build_data,
    build_toolbox,
    format_args,
    run_lengths,
    run_template,
)
from rl4dialog.training.checkpoint import best_checkpoint, checkpoint_folders, newest_checkpoint, read_checkpoint
from rl4dialog.training.evaluation import generate_texts

_logger = logging.getLogger(__name__)


def read_run_config(run: Path, overrides: Sequence[str] = (), trust: bool = False, trains: bool = False) -> RunConfig:
    """Read the resolved config of a run of unknown origin, and load its imports.

    Only ``trust`` allows the code that it executes, and the addresses and files that it names.
    """
    check_is_run(run)
    config = stored_config(run, overrides) if not trains else load_config(run / CONFIG_FILE, overrides)
    if not trust:
        refuse_code(config.model_dump(mode="json"), run, config_of(run / CONFIG_FILE), trains)
    load_entry_points()
    load_imports(config.imports, config_folder(run))
    return config


class Agent(ABC):
    """What acts in a run without texts: a trained policy, or a player of the environment."""

    name: str

    @abstractmethod
    def evaluate(self, split: str, folder: Path, about: Mapping[str, Any]) -> dict[str, float]:
        """Evaluate it, write the results to a new folder, and print them."""

    @abstractmethod
    def simulate(self, split: str, n: int, seed: int, path: Path) -> int:
        """Write dialogues as a log, print a table, and return the number of new ones."""


def stored_config(run: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The config of a run that is not trained, without settings that are no more."""
    config = load_config(run / CONFIG_FILE, overrides)
    if isinstance(config, OnPolicyConfig):
        policy_args = config.alg.policy.args.model_extra or {}
        for where, args in (("alg.args", config.alg.args), ("alg.policy.args", policy_args)):
            for name in [name for name in args if why_removed(config.alg.id, f"{where}.{name}", args[name])]:
                del args[name]
    return config


def find_checkpoint(run: Path, checkpoint: str | int = "last") -> Path:
    """Folder of a checkpoint: an iteration by number, the latest valid one (``"last"``), or the ``"best"``."""
    number: int | None = None
    if checkpoint == "last":
        newest = newest_checkpoint(run)
        if newest is not None:
            return newest.path
    elif checkpoint == "best":
        best = best_checkpoint(run)
        number = None if best is None else int(best["iteration"])
    elif re.fullmatch(r"\d+", str(checkpoint)):
        number = int(checkpoint)
    folders = checkpoint_folders(run)
    if number not in folders:
        known = f"available iterations: {', '.join(map(str, folders))}" if folders else "there are none"
        raise RunFolderError(f"{run} has no checkpoint {checkpoint!r} ({known})")
    return read_checkpoint(folders[number]).path


def model_folder(run: Path, checkpoint: Path | None = None) -> Path:
    """Return the folder of the model in a checkpoint, or of the final one; says if there is a newer one."""
    folder = (checkpoint or run) / MODEL_FOLDER
    if not folder.is_dir():
        raise RunFolderError(f"{folder} is missing: the run is not complete; load one of its checkpoints instead")
    if checkpoint is None and not is_complete(run):
        _logger.warning(
            "the run in %s is not complete: its model/ is from an earlier end, before it was resumed; the latest "
            "checkpoint is newer (--checkpoint last)",
            run,
        )
    return folder


def first_model(config: TextConfig, run: Path) -> PreTrainedModel | None:
    """The initial language model of a run; ``None`` if it is no longer available."""
    try:
        model = Assembly(config).initial_model
    except RL4DialogError as error:
        _logger.warning("the initial model of the run is not available: %s", error)
        return None
    recorded = read_provenance(run).get("model_hash")
    return model if recorded in (None, weights_hash(model)) else None


def check_learns_v(config: TextConfig, what: str) -> None:
    """Check that V(s) is among the values of a policy with values of tokens."""
    if not isinstance(config, PolicyRunConfig) or not algorithm_class(config).has_values:
        raise ModelError(f"alg.id: {config.alg.id} learns no V, so there are no {what}")


def load_policy(run: str | Path, checkpoint: str | int | None = None, trust: bool = False) -> LoadedPolicy:
    """Load the policy of a run.

    Args:
        run: The run folder, which may have been moved.
        checkpoint: ``None`` for the final model; otherwise an iteration number, ``"last"`` or ``"best"``.
        trust: Whether to allow the code that the run's config executes, such as its ``imports``, and the addresses,
            keys and files that it names.
    """
    folder = Path(run).expanduser()
    return load_run(read_run_config(folder, trust=trust), folder, checkpoint)


def load_run(config: RunConfig, run: Path, checkpoint: str | int | None = None) -> LoadedPolicy:
    """Load the policy of a run whose config was already read; see :func:`load_policy`."""
    config = text_config(config)
    chosen = None if checkpoint is None else find_checkpoint(run, checkpoint)
    return LoadedPolicy(config, model_folder(run, chosen), run, chosen)


class LoadedPolicy(Assembly):
    """A trained policy, whose parts are those of its run.

    Args:
        config: Config of the run.
        model: Folder or hub id of the language model and its tokenizer.
        run: The run folder; ``None`` if there is none.
        checkpoint: Folder of the model's checkpoint, if it is from one.
    """

    def __init__(
        self, config: RunConfig, model: str | Path, run: Path | None = None, checkpoint: Path | None = None
    ) -> None:
        super().__init__(config := text_config(config))
        self.run, self._model, self._checkpoint = run, model, checkpoint
        if policy_class(config).guided:
            self.policy = self._guided_policy()
        elif policy_class(config).maskable:
            self.policy = self._masked_policy(self._language_model(model))
        else:
            self.policy = self._around(self._language_model(model))

    @part
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return build_tokenizer(**{**self.config.tokenizer.model_dump(), "model_name": str(self._model)})

    @part
    def lengths(self) -> Lengths:
        return run_lengths(self.config, self.tokenizer, Data({}, self.turn_marker), str(self._model))

    @part
    def data(self) -> Data:
        return build_data(self.config, self.tokenizer, recorded_start(self.run))

    @part
    def conversing(self) -> Conversing | None:
        """The conversations of the run's evaluations, ready for the first one; ``None`` without a partner."""
        found = build_conversing(self.config, self.texts, self.scorer)
        if found is not None:
            self.begin_conversations(found)
        return found

    def begin_conversations(self, conversing: Conversing | PartnerService) -> None:
        """Prepare the partner of conversations, given them or the partner itself."""
        if not conversing.needs_initial_weights:
            conversing.begin_run(self.policy)
            return
        first = self.initial_model if self.run is None else first_model(self.config, self.run)
        if first is None:
            raise ModelError(
                "the partner self_play is the model with which the run began, and this is not available: restore "
                "alg.policy.args.model_name and the data of the warm start, or set train_evaluation.partner"
            )
        model = self.policy.language_model
        own = dict(first.to(self.policy.device).named_parameters())  # type: ignore[arg-type]
        conversing.begin_run(self.policy, WeightCopy(model.named_parameters(), own))

    @property
    def turn_marker(self) -> str | None:
        recorded = read_provenance(self.run) if self.run is not None else {}
        if "turn_marker" in recorded:
            return str(recorded["turn_marker"]) if recorded["turn_marker"] else None
        return self.data.turn_marker

    @property
    def persona(self) -> str | None:
        """Persona or system message of all prompts of the run, empty if they have none; ``None`` if they differ."""
        return self.data.persona if self.run is None else read_provenance(self.run).get("persona")

    @property
    def generation_kwargs(self) -> dict[str, Any]:
        return evaluation_kwargs(self.config)

    @property
    def dialogue_format(self) -> DialogueFormat | None:
        """Dialogue format of the run's datapool; ``None`` if it contains no dialogues."""
        args = format_args(self.config)
        if args is None:
            return None
        chat_template = run_template(self.config, self.tokenizer, recorded_start(self.run))
        return DialogueFormat(args["format"], args["context_size"], chat_template, args["in_conversation"])

    @functools.cached_property
    def toolbox(self) -> Toolbox | None:
        """The tools of the run's conversations, if it has any."""
        template = self.dialogue_format.render_chat if self.dialogue_format is not None else None
        return build_toolbox(self.config, template)  # type: ignore[arg-type]

    @functools.cached_property
    def reference_policy(self) -> LMActorCriticPolicy:
        """A policy whose reference is the run's initial model, also if the run's own reference moved."""
        first = first_model(self.config, self.run) if self.run is not None else None
        if first is None:
            raise ModelError("the initial model of the run is not available, so the KL divergence cannot be computed")
        return self._around(first)

    def chat(
        self,
        text: str,
        history: Sequence[str] = (),
        persona: str | None = None,
        seed: int | None = None,
        **generation_kwargs: Any,
    ) -> str:
        """Reply in a conversation, like ``agent.chat`` of OpenRL.

        Args:
            text: The user's message.
            history: Earlier turns of both sides, oldest first; the caller appends ``text`` and the reply.
            persona: The model's persona; by default :attr:`persona`, and none if it is empty.
            seed: Random seed of the sampling.
            generation_kwargs: Overrides of the sampling settings of the run's evaluations, without beam search.
        """
        GenerationSettings.from_kwargs(generation_kwargs, only_sampling=NOT_IN_CONVERSATIONS)
        dialogue_format = self.dialogue_format
        if dialogue_format is None:
            raise ConfigError(f"datapool {self.config.datapool.id!r} contains no dialogues, so chat is not available")
        persona = self.persona if persona is None else persona
        prompt = dialogue_format.prompt(dialogue_format.context([*history, text]), persona or None)
        kwargs = without_beams(self.generation_kwargs) | generation_kwargs
        return self._generate([prompt], None, seed, kwargs)[0]

    @overload
    def generate(self, prompts: str, *args: Any, **generation_kwargs: Any) -> str: ...
    @overload
    def generate(self, prompts: Sequence[str], *args: Any, **generation_kwargs: Any) -> list[str]: ...
    def generate(
        self,
        prompts: str | Sequence[str],
        batch_size: int | None = None,
        seed: int | None = None,
        **generation_kwargs: Any,
    ) -> str | list[str]:
        """Generate a reply to a prompt, or to each of several.

        Args:
            prompts: One prompt or several, in the format of the datapool.
            batch_size: Prompts per batch; by default as in the run's evaluations.
            seed: Random seed of the sampling; torch's random state is restored afterwards.
            generation_kwargs: Overrides of :attr:`generation_kwargs`.
        """
        several = [prompts] if isinstance(prompts, str) else prompts
        found = self._generate(several, batch_size, seed, {**self.generation_kwargs, **generation_kwargs})
        return found[0] if isinstance(prompts, str) else found

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
        """Log-probability of each token of each reply, including the end token, in nats."""
        return self._per_token(prompts, replies, self.policy, self.policy.sequence_log_probs)

    def q_values(self, prompts: Sequence[str], replies: Sequence[str]) -> list[list[float]]:
        """Value Q of each token of each reply, by which a guided policy chooses tokens.

        A policy that reranks replies has one value per reply, which all its tokens get.
        """
        return self._per_token(prompts, replies, self.policy, self.guiding_policy.q_values)

    def advantages(self, prompts: Sequence[str], replies: Sequence[str]) -> list[list[float]]:
        """Advantage Q - V of each token of each reply."""
        check_learns_v(self.config, "advantages")
        return self._per_token(prompts, replies, self.policy, self.guiding_policy.advantages)

    @property
    def beta(self) -> float | None:
        """Weight of the values that guide the policy; ``None`` if none do."""
        return float(self.guiding_policy.guidance.beta) if is_guided(self.config) and not self.policy.reranked else None

    @property
    def searches(self) -> bool:
        """Whether the policy searches for whole replies, so that they cannot be generated token by token."""
        return is_guided(self.config) and self.guiding_policy.guidance.searches

    def guided_by(self, beta: float | None) -> AbstractContextManager[None]:
        """A context with another weight of the values that guide the policy; ``None`` changes nothing."""
        if beta is not None and self.policy.reranked:
            raise ConfigError("values of whole replies rank samples, so this policy has no beta")
        return nullcontext() if beta is None else self.guiding_policy.guided_by(beta)

    @property
    def guiding_policy(self) -> Any:
        """The policy, which values of tokens guide; an error if they do not."""
        if not is_guided(self.config):
            raise ModelError(f"the policy of alg.id: {self.config.alg.id} is not guided by values of tokens")
        return self.policy

    def values(self, prompts: Sequence[str], replies: Sequence[str]) -> list[list[float]]:
        """Compute the critic's value before each token of each reply, including the end token."""
        if isinstance(self.config, OnPolicyConfig) and self.config.critic_reads == "secret":
            raise ModelError("the run's critic also reads the partner's secret (critic_reads), so texts have no values")
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
        """Compute the run's reward of whole replies and its parts, with the weights of the last iteration.

        Args:
            prompts: One per reply; all other sequences have the same length.
            replies: Each is the last reply of its episode.
            references: Reference replies, for rewards that need them.
            meta_infos: Meta data of the samples, for rewards that read it.
            on_error: With ``mask``, failed scores are NaN instead of raising an error.
        """
        _check_as_many(prompts, replies=replies, references=references, meta_infos=meta_infos)
        texts = [list(each) for each in references] if references is not None else [[] for _ in prompts]
        batch = FinishedReplies(list(prompts), list(replies), texts, list(meta_infos or []))
        if self.scorer is None or isinstance(self.config, SupervisedConfig):
            raise ConfigError("the run has no reward_fn, so there are no scores")
        scorer = dataclasses.replace(self.scorer, on_error=on_error, timeout_s=None)
        return scorer.score(batch, self.config.n_iters or 1)

    def prompt_ids(self, prompt: str) -> list[int]:
        """Token ids of a prompt, truncated as in training."""
        return self.read(prompt).prompt_ids

    def read(self, prompt: str) -> History:
        """What the model reads of a prompt, which is truncated as in training.

        If all prompts of the run begin with something, such as a return, so does this one.
        """
        lengths = self.lengths
        if (prefix := self.config.prompt_prefix) is not None:
            prompt = prefix.asked(prompt, self.dialogue_format, lengths.turn_end)
        turns = with_turns(prompt, lengths.turn_end)
        return History(self.tokenizer, turns, lengths.prompt, lengths.truncation_side)

    def _per_token(
        self,
        prompts: Sequence[str],
        replies: Sequence[str],
        policy: LMActorCriticPolicy,
        numbers_of: Callable[[Replies], Tensor],
    ) -> list[list[float]]:
        _check_as_many(prompts, replies=replies)
        alone, size = self.config.is_encoder_decoder, self.config.train_evaluation.eval_batch_size
        found, marker = list[list[float]](), self.turn_marker
        for start in range(0, len(prompts), size):
            read, said = prompts[start : start + size], replies[start : start + size]
            responses = [
                encode_reply(self.tokenizer, text.strip(), marker, self.lengths.reply, "" if alone else prompt)
                for prompt, text in zip(read, said, strict=True)
            ]
            batch = Replies.from_ids([self.prompt_ids(prompt) for prompt in read], responses, policy.device)
            numbers = batch.computed(numbers_of)[batch.response_mask]
            found += [row.tolist() for row in batch.per_row(numbers)]
        return found

    @functools.cached_property
    def policy_with_critic(self) -> LMActorCriticPolicy:
        """The policy of the selected or latest checkpoint, with its critic."""
        config, folder = self.config, self._checkpoint
        if self.policy.guided:
            check_learns_v(config, "values")
            return self.policy
        if not isinstance(config, OnPolicyConfig) or not algorithm_class(config).needs_critic:
            raise ModelError(f"the run's algorithm, {config.alg.id}, has no critic, so there are no values")
        if folder is None and self.run is not None:
            with suppress(RunFolderError):
                folder = find_checkpoint(self.run)
        if folder is None:
            raise RunFolderError(
                f"{self.run or 'the model'} contains no critic, so values are not available: model/ is only the "
                f"language model, and there is no checkpoint; set train_evaluation.save_every to keep checkpoints"
            )
        if self.run is not None and (why := why_no_values(config_of(self.run / CONFIG_FILE))):
            raise ModelError(f"{why}, so there are no values")
        critic = config.alg.policy.args.model_dump().get("critic", "separate")
        policy = self._as_trained(folder / MODEL_FOLDER, critic=critic, critic_reads=config.critic_reads)
        load_state_beside(policy, folder, CRITIC_FILE)
        return policy

    def _as_trained(self, model: Path, **changes: Any) -> LMActorCriticPolicy:
        """The policy with the adapters beside a model, if it has some: those of heads apply to the initial model."""
        if self.config.lora is None:
            return self._around(self._language_model(model), **changes)
        initial = build_language_model(self.config, self.texts)  # anew, because adapters are added to it
        policy = self._around(initial, lora=self.config.lora, **changes)
        assert policy.lora is not None
        policy.lora.load(model / ADAPTER_FOLDER)
        return policy

    def _guided_policy(self) -> LMActorCriticPolicy:
        """The policy with values of tokens, as far as they are saved."""
        config: Any = self.config
        policy: Any = self._as_trained(Path(self._model), **algorithm_class(config).policy_arguments())
        if self._checkpoint is not None:
            load_state_beside(policy, self._checkpoint, CRITIC_FILE)
            load_state_beside(policy, self._checkpoint, TARGET_FILE)
        elif is_guided(self.config):
            policy.load_values(Path(self._model))
        return policy  # type: ignore[no-any-return]

    def _masked_policy(self, model: PreTrainedModel) -> LMActorCriticPolicy:
        """The policy with the mask of its run or, if that is not available, with the model's own, and a warning.

        The mask policy is a copy of the model after some iteration: the last one, that of a checkpoint, or none, which
        is the initial model of the run.
        """
        args = {**PolicyRegistry.defaults(self.config.policy_id), **inference_arguments(self.config)}
        masks_by_reference = str(args["mask_type"]).startswith("reference")
        run, folder = self.run, self._checkpoint
        if folder is None and run is not None and is_complete(run):
            n_iterations = int(read_result(run)["iterations"])
            updated = 0 if masks_by_reference else n_iterations - n_iterations % int(args["target_update_iterations"])
            if updated == n_iterations:
                return self._around(model)
            # The mask policy did not change after its last update.
            since = [each for number, each in checkpoint_folders(run).items() if updated <= number <= n_iterations]
            folder = next((each for each in reversed(since) if (each / MASK_FILE).is_file()), None)
            if updated == 0 and folder is None:
                masks_by_reference = True  # the mask policy was never updated, so it is still the reference
        if masks_by_reference and run is not None:
            if (first := first_model(self.config, run)) is not None:
                policy = self._around(first)
                policy.language_model.load_state_dict(model.state_dict())
                return policy
        elif folder is not None:
            policy = self._around(model)
            load_state_beside(policy, folder, MASK_FILE)
            return policy
        _logger.warning(
            "the mask of the training of %s is not available (set train_evaluation.save_every to keep it): replies are "
            "masked by the model's own probabilities",
            run or "the model",
        )
        return self._around(model)

    def _language_model(self, name: str | Path) -> PreTrainedModel:
        auto_class, with_values = policy_class(self.config).auto_class, is_guided(self.config)
        lengths = (self.lengths.prompt, self.lengths.reply)
        return load_language_model(str(name), self.tokenizer, *lengths, auto_class, with_values=with_values)

    def _around(self, model: PreTrainedModel, **changes: Any) -> LMActorCriticPolicy:
        return build_inference_policy(self, model, **changes).to(get_device("auto"))


class TrainedRun:
    """A run that was just trained: its ``model``, ``policy``, test ``metrics``, ``generate`` and ``chat``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.loaded = folder, load_policy(folder, trust=True)
        self.config, self.policy = self.loaded.config, self.loaded.policy
        self.model, self.metrics = self.policy.language_model, read_result(folder).get("test", {}).get("after", {})
        self.generate, self.chat = self.loaded.generate, self.loaded.chat


def _check_as_many(prompts: Sequence[Any], **others: Sequence[Any] | None) -> None:
    for name, values in others.items():
        if values is not None and len(values) != len(prompts):
            raise DataError(f"there are {len(prompts)} prompts but {len(values)} {name}; pass one per prompt")


def load_agent(run: str | Path, checkpoint: str | int | None = None, trust: bool = False) -> BasePolicy:
    """Load the policy of a run in an environment other than ``text_generation``.

    Args:
        run: The run folder, which may have been moved.
        checkpoint: ``None`` for the final policy; otherwise an iteration number, ``"last"`` or ``"best"``.
        trust: Whether to allow the code that the run's config executes, such as its ``imports`` or the module of an
            ``env.id``, and the addresses, keys and files that it names.

    Returns:
        stable-baselines3's policy: ``policy.predict(observation, deterministic=True)`` returns an action.

    Raises:
        RunFolderError: If the folder contains no run, no policy, or no such checkpoint.
        ConfigError: If it is a run of a language model, its config needs ``trust``, or the environment cannot be built.
        ModelError: If the weights do not match.
    """
    folder = Path(run).expanduser()
    config = read_run_config(folder, trust=trust)
    if not config.agent:
        raise ConfigError(f"{folder} is a run of a language model; use rl4dialog.load_policy")
    return import_object(config.agent)(config, folder.name, folder, checkpoint).policy  # type: ignore[no-any-return]
