"""Base of all language-model actor-critic policies: models, parameters, and stable-baselines3's API.

A policy holds the *policy* (the language model being trained), the *critic* (value of a state, per token) and the
*reference* (a copy of the initial policy, for the KL penalty). Subclasses implement the architecture.
"""

from __future__ import annotations

import copy
import inspect
import logging
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, NoReturn, Protocol, Self, TypeVar, cast

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import CategoricalDistribution
from stable_baselines3.common.policies import BasePolicy
from torch import Tensor, nn
from transformers import PreTrainedModel

from rl4dialog.core.arguments import Count, Fraction, NonNegative, Positive
from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.distributed import reshard
from rl4dialog.functional.log_probs import NEVER, scale_logits, token_entropy, token_log_probs
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.beam_search import beam_search
from rl4dialog.policies.casts import cast_at_once
from rl4dialog.policies.decoding import Decoder, Head, Obs, PromptCache, can_continue_prompts, tolerance
from rl4dialog.policies.generation import (
    NOT_IN_CONVERSATIONS,
    NOT_IN_ROLLOUTS,
    GenerationSettings,
    SampledTokens,
    StepEditor,
    all_steps,
    sample_steps,
)
from rl4dialog.policies.gradient_steps import (
    check_optimizer,
    checkpoint_layers,
    compile_layers,
    with_defaults,
)
from rl4dialog.policies.gradient_steps import optimizer_class as find_optimizer
from rl4dialog.policies.graph_sampler import (
    LOOK_EVERY,
    GraphSampler,
    eager_reason,
    refusal,
    static_cache_holds,
    uncaptured,
)
from rl4dialog.policies.heads import ValueHead, head_is_plain, hidden_size, lm_logits
from rl4dialog.policies.lora import LoRA, check_restores, check_settings
from rl4dialog.policies.models import embedding_rows, ids_without_token, quiet, to_bfloat16
from rl4dialog.policies.references import MovingReference, Reference, WeightCopy, check_reference
from rl4dialog.text.end_of_turn import EndOfTurn

T = TypeVar("T")
Precision = Literal["fp32", "bf16"]
# Methods of RL4LMs' and stable-baselines3's policies that rollouts or updates do not call, with those that they do.
_NOT_CALLED = {
    "_build_model_heads": "_build_models(model)",
    "_get_action_masks": "_step_editors(obs, settings)",
    "_setup_optimizer": "make_optimizer(learning_rate)",
    "forward_policy": "_response_hidden(trunk, replies) or _logits(replies, hidden, ids)",
    "forward_value": "_build_models(model), which builds _value_head, or _values(replies, hidden)",
    "get_distribution": "_logits(replies, hidden, ids)",
    "get_inputs_for_generation": "_decoder(trunk, obs, head, cache)",
    "get_log_probs_ref_model": "reference_log_probs(replies)",
    "predict_values": "_build_models(model), which builds _value_head, or _values(replies, hidden)",
}
# Arguments of RL4LMs' methods whose names are the same here, with those that they get.
_OTHER_ARGUMENTS = {
    ("__init__", "model_name"): "model and end_of_turn; take *args and **kwargs, and pass them on",
    ("generate", "tokenizer"): "obs and settings of the generation",
    ("evaluate_actions", "action_masks"): "obs and actions",
}

_logger = logging.getLogger(__name__)
_PAGES = "See docs/your_own/policy.md, and docs/coming_from/rl4lms.md for policies of RL4LMs"


class EvaluatedActions(NamedTuple):
    """Numbers of N actions, in stable-baselines3's order and with RL4LMs' names; each has shape (N,)."""

    values: Tensor
    log_prob: Tensor
    entropy: Tensor


class ReplySource(Protocol):
    """Generates replies instead of a policy, with a copy of its weights."""

    def generate(self, policy: LMActorCriticPolicy, obs: Obs, settings: GenerationSettings, limit: int) -> Replies:
        """Generate one reply per prompt, like the policy's own sampler, with at most ``limit`` tokens."""

    def generate_ahead(self, obs: Obs, settings: GenerationSettings, limit: int) -> None:
        """Begin replies with the weights before an update, if it can while the policy is trained."""

    def weights_will_change(self) -> None:
        """Take over the policy's weights before the next generation."""


class LMActorCriticPolicy(BasePolicy):
    """Base class of the policies.

    Args:
        observation_space: Observation space of :class:`~rl4dialog.envs.text_generation.TextGenEnv` or its utterance
            view.
        action_space: Action space of the same environment.
        lr_schedule: Learning rate as a function of the remaining progress.
        model: The language model.
        end_of_turn: Detection of reply ends.
        critic: ``separate`` for a separate value model (a copy of the language model's trunk with a linear head),
            ``shared`` for a linear head on the policy's trunk, or ``none`` for algorithms without values.
        critic_reads: What a ``separate`` critic reads: the ``history``, as the policy does, or before it also the
            ``secret`` of the conversation, such as the partner's goal. Only in training.
        critic_lr_factor: Learning rate of the critic, relative to the policy's. If it is not 1, the gradients of both
            are scaled down separately.
        generation_kwargs: Sampling settings of rollouts; see :class:`GenerationSettings`.
        optimizer_class: Optimizer of policy and critic together: ``adam``, ``adamw``, ``adam_8bit``, ``adamw_8bit``,
            or a class.
        optimizer_kwargs: Optimizer arguments. Adam's ``eps`` defaults to 1e-5, as in stable-baselines3.
        weight_decay: Shorthand for ``optimizer_kwargs["weight_decay"]``.
        precision: ``fp32``, or ``bf16`` for forward passes under autocast. Weights, optimizer and log-softmax are
            always float32.
        lora: Train only low-rank adapters, with these settings of :class:`~rl4dialog.policies.lora.LoRA`.
        gradient_checkpointing: Recompute activations in the backward pass instead of storing them.
        compile: Compile each layer with ``torch.compile``, which takes up to minutes for each new shape and joins small
            kernels. Results are the same up to rounding.
        share_prompts: Process a prompt only once for all replies to it, and for the next prompts of its conversation.
        reference: Model of the KL penalty: the ``initial`` one (with LoRA, the model without its adapters), one that
            follows the policy (``ema``: moving average over iterations, ``reset``: a copy every few iterations), or
            ``none`` to save its memory and passes. With ``none`` the KL is 0, so a KL penalty is not possible.
        reference_decay: For ``ema``, the share of the reference that each iteration keeps.
        reference_every: For ``reset``, the number of iterations between copies of the policy.
        offload_reference: Keep the reference in main memory between uses.
        use_sde: Required by stable-baselines3's API. Must be False, because tokens are discrete.
        max_reply_length: Maximum number of tokens of a reply; by default the length of ``context_ids``, in which the
            utterances of a partner outside of the environment may be longer.

    Raises:
        ConfigError: If arguments contradict each other.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a subclass with methods that would not be called everywhere, or with other arguments."""
        super().__init_subclass__(**kwargs)
        for name, instead in _NOT_CALLED.items():
            if getattr(cls, name, None) is not getattr(LMActorCriticPolicy, name, None):
                problem = f"{cls.__name__}.{name} is not what rollouts and updates call"
                raise ConfigError(f"{problem}; override {instead}. {_PAGES}")
        for (name, argument), ours in _OTHER_ARGUMENTS.items():
            if argument in inspect.signature(getattr(cls, name)).parameters:
                raise ConfigError(f"{cls.__name__}.{name} takes {argument!r}, but gets {ours}. {_PAGES}")

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Check the arguments as they are given, before any class fills in defaults."""
        if args and len(args) < 4 and "model" not in kwargs:
            raise ConfigError(f"{cls.__name__} needs its language model; pass policy_kwargs=env.policy_kwargs, too")
        cls.check_arguments(kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Callable[[float], float],
        model: PreTrainedModel,
        end_of_turn: EndOfTurn,
        critic: Literal["separate", "shared", "none"] = "separate",
        critic_reads: Literal["history", "secret"] = "history",
        critic_lr_factor: Positive = 1.0,
        generation_kwargs: dict[str, Any] | None = None,
        optimizer_class: type[torch.optim.Optimizer] | str = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        weight_decay: NonNegative | None = None,
        precision: Precision = "fp32",
        lora: Mapping[str, Any] | None = None,
        gradient_checkpointing: bool = False,
        compile: bool = False,
        reference: Reference = "initial",
        reference_decay: Fraction | None = None,
        reference_every: Count | None = None,
        offload_reference: bool = False,
        share_prompts: bool = True,
        use_sde: Literal[False] = False,
        max_reply_length: int | None = None,
    ) -> None:
        super().__init__(observation_space, action_space)
        self.critic_kind, self.precision = critic, precision
        self._critic_lr_factor, self._reads_secret = critic_lr_factor, critic_reads == "secret"
        self.end_of_turn = end_of_turn
        self.settings = GenerationSettings.from_kwargs(generation_kwargs, only_sampling=NOT_IN_ROLLOUTS)
        self.max_prompt_length = int(observation_space["prompt_ids"].shape[0])  # type: ignore[index]
        length = int(observation_space["context_ids"].shape[0])  # type: ignore[index]
        self.max_reply_length = length if max_reply_length is None else max_reply_length
        self.pad_token_id = int(end_of_turn.tokenizer.pad_token_id)
        self.backend: ReplySource | None = None
        self.has_reference, self._offload_reference = reference != "none", offload_reference
        # A recomputed layer would write its keys and values twice.
        self.share_prompts = share_prompts and not gradient_checkpointing
        if lora is not None and precision == "bf16":
            to_bfloat16(model)  # frozen weights need no float32 master copy
        self.lora = LoRA(model, lora) if lora is not None else None
        without_token = ids_without_token(end_of_turn.tokenizer, embedding_rows(model))
        never = torch.tensor(without_token, device=model.device) if without_token else None
        self.register_buffer("_without_token", never, persistent=False)
        self._build_models(model)
        self._moves = (reference_decay, reference_every) if reference in ("ema", "reset") else None
        self._initial_weights: WeightCopy | None = None
        self.make_reference()
        # A recomputed layer would cast again, and a compiled one knows its parameters.
        self._casts_at_once = not (gradient_checkpointing or compile)
        if gradient_checkpointing:
            for trained in filter(None, (self._policy_model, self._value_head and self._value_head.trunk)):
                checkpoint_layers(trained)
        if compile:
            compile_layers(self)
        self.optimizer_class = find_optimizer(optimizer_class)
        self.optimizer_kwargs = with_defaults(self.optimizer_class, optimizer_kwargs, weight_decay)
        self.sharded = False  # whether the processes share the weights
        self.gather_weights = True  # whether these are whole while replies are generated
        self.lockstep = False  # whether all processes must generate and evaluate equally often
        self.make_optimizer(lr_schedule(1))
        self.train(False)

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        """Check constraints on arguments beyond their types, before a model is loaded."""
        check_reference(args)
        if args.get("critic") == "shared" and args.get("critic_reads") == "secret":
            problem = "alg.policy.args.critic: shared reads with the policy, which must not read the secret"
            raise ConfigError(f"{problem}; with critic_reads: secret use critic: separate")
        for name in ("critic_lr_factor", "critic_reads"):
            if args.get("critic") == "none" and args.get(name) not in (None, 1, "history"):
                raise ConfigError(f"alg.policy.args.{name} has no effect with alg.policy.args.critic: none; remove it")
        check_optimizer(args.get("optimizer_class", "adam"), args.get("optimizer_kwargs") or {})
        if args.get("lora") is not None:
            check_settings(args["lora"])
            if args.get("reference", "initial") == "initial":
                check_restores(args["lora"])
        where = "alg.policy.args.generation_kwargs"
        GenerationSettings.from_kwargs(args.get("generation_kwargs"), where, NOT_IN_ROLLOUTS)

    def _of_other_algorithms(self) -> NoReturn:
        problem = f"{type(self).__name__} has probabilities of tokens and values of states, as PPO, A2C and TRPO need"
        raise ConfigError(f"{problem}; DQN, QR-DQN and RecurrentPPO need another policy")

    q_net = quantile_net = lstm_actor = property(_of_other_algorithms)

    # -- models ---------------------------------------------------------------------------------------------------

    auto_class: Any  # the transformers Auto class that loads this policy's language model
    maskable = False  # whether a mask policy restricts the allowed tokens
    # How replies are sampled: with graphs, token by token, or with graphs on a CUDA device where possible.
    sampler: Literal["auto", "graph", "transformers"] = "transformers"
    n_rollout_rows = 1  # replies that a rollout samples at once
    guided = False  # whether values of tokens or replies guide the language model
    reranked = False  # whether these are values of replies, by which sampled replies are ranked
    # Whether a prompt and its reply are one sequence, so that several turns of a conversation can be one row.
    joins_turns = False
    _prompt_cache: PromptCache | None = None
    _without_token: Tensor | None

    def _build_models(self, model: PreTrainedModel) -> None:
        quiet(model)
        self._policy_model = model
        copied = self.has_reference and self.lora is None
        self._reference_model = copy.deepcopy(model).requires_grad_(False) if copied else None
        trunk = copy.deepcopy(self._trunk(model)) if self.critic_kind == "separate" else None
        if trunk is not None and self.lora is None:
            trunk.requires_grad_(True)
        has_critic = self.critic_kind != "none"
        self._value_head = ValueHead(hidden_size(model), trunk) if has_critic else None
        self._head_is_plain = head_is_plain(model)

    @abstractmethod
    def _trunk(self, model: PreTrainedModel) -> nn.Module:
        """The language model without its head."""

    @abstractmethod
    def _response_hidden(self, trunk: nn.Module, replies: Replies) -> Tensor:
        """Last hidden states *before* each of the N agent tokens, which predict them. Shape (N, H)."""

    @abstractmethod
    def _decoder(self, trunk: Any, obs: Obs, head: Head | None = None, cache: PromptCache | None = None) -> Decoder:
        """Create a decoder of a trunk for the prompts of observations; without a head, for hidden states only."""

    def _model_decoder(self, model: PreTrainedModel, obs: Obs, cache: PromptCache | None = None) -> Decoder:
        """Create a decoder of a whole model for the prompts of observations."""
        return self._decoder(self._trunk(model), obs, partial(self._head, model), cache)

    @property
    def n_logits(self) -> int:
        """Number of logits of a token, which may be more than there are tokens."""
        return embedding_rows(self._policy_model)

    @property
    def language_model(self) -> PreTrainedModel:
        """The model being trained."""
        return self._policy_model

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the token distribution. These and ``critic_parameters`` are all trained parameters."""
        return (p for p in self._policy_model.parameters() if p.requires_grad)

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that affect only the values."""
        return iter(()) if self._value_head is None else self._value_head.trained_parameters()

    def make_optimizer(self, learning_rate: float) -> None:
        """Create a new optimizer for the trained parameters."""
        trained: list[Any] = [*self.actor_parameters(), *self.critic_parameters()]
        if self._critic_lr_factor != 1:
            of_critic = {"params": [*self.critic_parameters()], "lr_factor": self._critic_lr_factor}
            trained = [{"params": [*self.actor_parameters()]}, of_critic]
        self.optimizer = self.optimizer_class(trained, lr=learning_rate, **self.optimizer_kwargs)  # type: ignore[call-arg]

    def make_reference(self) -> None:
        """Let a reference that follows the policy begin with its weights."""
        self._moving_reference: MovingReference | None = None
        if self._moves is not None:
            own = self._weights_of_reference()
            self._moving_reference = MovingReference(self._trained_weights(), *self._moves, own, self)

    def _weights_of_reference(self) -> dict[str, nn.Parameter] | None:
        reshard(self)
        return None if self._reference_model is None else dict(self._reference_model.named_parameters())

    def update_reference(self, iteration: int) -> None:
        """Move a reference that follows the policy after an iteration."""
        if self._moving_reference is not None:
            self._moving_reference.update(iteration)

    def states(self) -> dict[str, dict[str, Tensor]]:
        """States needed to resume, beside model, critic and initial reference, by kind and name in the state dict."""
        return {} if self._moving_reference is None else {"reference": self._moving_reference.tensors()}

    def _trained_weights(self) -> list[tuple[str, nn.Parameter]]:
        reshard(self)
        return [(name, p) for name, p in self._policy_model.named_parameters() if p.requires_grad]

    def copied_weights(self) -> WeightCopy:
        """Copy the trained weights of the language model; with LoRA, only the adapters."""
        return WeightCopy(self._trained_weights(), root=self)

    def initial_weights(self) -> WeightCopy:
        """Weights of the language model at the first call, before training; if the reference holds them, no copy."""
        if self._initial_weights is None:
            moves = self._moving_reference is not None or self._offload_reference
            own = None if moves else self._weights_of_reference()
            self._initial_weights = WeightCopy(self._trained_weights(), own, self)
        return self._initial_weights

    def whole_model(self) -> PreTrainedModel | None:
        """The language model with all weights; of a sharded one a copy, in the first process. All must call this."""
        return self.language_model

    def get_language_model(self) -> PreTrainedModel:
        """The model being trained, under RL4LMs' name."""
        return self.language_model

    def train(self, mode: bool = True) -> LMActorCriticPolicy:
        """Stay in evaluation mode. With dropout, old and new log-probabilities of a token would differ."""
        return super().train(False)

    @contextmanager
    def reference(self) -> Iterator[PreTrainedModel]:
        """Provide the reference on the device, or with LoRA the trained model with other adapters or none.

        Without a reference, this is the trained model.
        """
        if (model := self._reference_model) is not None:
            yield model.to(self.device) if self._offload_reference else model  # type: ignore[arg-type]
            if self._offload_reference:
                model.to("cpu")  # type: ignore[arg-type]
            return
        weights: AbstractContextManager[None] = nullcontext()
        if self._moving_reference is not None:
            weights = self._moving_reference.in_place()
        elif self.lora is not None and self.has_reference:
            weights = self.lora.off()
        with weights:
            yield self._policy_model

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._policy_model.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def _head(self, model: PreTrainedModel, hidden: Tensor) -> Tensor:
        """Logits of N last hidden states, float32, the lowest for ids without a token. Shape (N, H) -> (N, V)."""
        with self._autocast():
            logits = lm_logits(model, hidden, self._head_is_plain).float()
        return self.only_tokens(logits, in_place=self._head_is_plain)

    def only_tokens(self, scores: Tensor, in_place: bool = False) -> Tensor:
        """Exclude ids without a token, which the action space has as the model does. Shape (..., V) -> (..., V)."""
        if self._without_token is None:
            return scores
        fill = scores.index_fill_ if in_place else scores.index_fill
        return fill(-1, self._without_token, NEVER)

    # -- whole replies --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def generate(self, obs: Obs, **generation_kwargs: Any) -> Replies:
        """Sample one reply per prompt, or find one by beam search."""
        settings, limit = self._sampler(generation_kwargs)
        if settings.num_beams > 1:
            return self._beam_search(obs, settings, limit)
        if self.backend is not None:
            return self.backend.generate(self, obs, settings, limit)
        with self._autocast(), self.keeping_gathered():
            return all_steps(self._sample_steps(obs, settings, limit, lockstep=self.lockstep))

    def keeping_gathered(self) -> AbstractContextManager[None]:
        """Context of many passes with the same weights, in which a sharded layer, once gathered, stays whole."""
        return nullcontext()

    def stream(self, obs: Obs, random: torch.Generator | None = None, **kwargs: Any) -> Iterator[SampledTokens]:
        """Sample the same replies as :meth:`generate`, and yield the tokens of each step."""
        settings, limit = self._sampler(kwargs, only_sampling=NOT_IN_CONVERSATIONS)
        with torch.no_grad(), self._autocast():
            steps = self._sample_steps(obs, settings, limit, random=random, look_every=1)
        while True:
            with self._autocast():  # not around the yield, which would affect the caller's code
                step = next(steps, None)
            if step is None:
                return
            yield step

    @contextmanager
    def remembering_prompts(self) -> Iterator[None]:
        """Context of conversations: if a prompt begins with the last one, :meth:`generate` reads only the rest of it.

        The weights must not change in this context. It has no effect with a backend, or with a model whose cache cannot
        be continued.
        """
        outer = self._prompt_cache
        if self.share_prompts and can_continue_prompts(self._policy_model):
            self._prompt_cache = PromptCache()
        try:
            yield
        finally:
            self._prompt_cache = outer

    def _sample_steps(
        self,
        obs: Obs,
        settings: GenerationSettings,
        limit: int,
        lockstep: bool = False,
        random: torch.Generator | None = None,
        look_every: int = LOOK_EVERY,
    ) -> Generator[SampledTokens, None, Replies]:
        decoder: Any = self._model_decoder(self._policy_model, obs, self._prompt_cache)
        graphs = None if self.eager_reason(settings) else self._graph_sampler
        if graphs is not None and not graphs.is_busy:
            return graphs.steps(decoder, obs, settings, limit, random, look_every)
        editors = self._step_editors(obs, settings)
        return sample_steps(decoder, obs, settings, self.end_of_turn, limit, editors, lockstep, random)

    @classmethod
    def graph_refusal(cls) -> str | None:
        """Why this kind of policy cannot sample with graphs; ``None`` if it can."""
        if cls.maskable or cls.guided:
            return "a second model chooses among the tokens"
        return None if cls.joins_turns else "the cross-attention of an encoder-decoder is not captured"

    def eager_reason(self, settings: GenerationSettings) -> str | None:
        """Why replies with these settings are sampled by calling the model for each token; ``None`` if with graphs."""
        of_model = "its processes run the same layers together" if self.lockstep else self._model_refusal
        model, device_type = self._policy_model, self.device.type
        of_model = of_model or uncaptured(model.config, model.dtype, device_type)
        return eager_reason(self.sampler, device_type, settings, of_model)

    @cached_property
    def _model_refusal(self) -> str | None:
        n_columns = self.max_prompt_length + self.max_reply_length
        return self.graph_refusal() or refusal(self._policy_model.config, n_columns)

    @cached_property
    def _graph_sampler(self) -> GraphSampler | None:
        """Sampler with graphs, if the model computes the same with it."""
        model, n_prompt, n_new = self._policy_model, self.max_prompt_length, self.max_reply_length
        parts = model, self._trunk(model), partial(self._head, model)
        if not static_cache_holds(*parts, self.end_of_turn.tokenizer, n_prompt):
            return None
        return GraphSampler(*parts, self.end_of_turn, n_prompt + n_new, n_new, self.n_rollout_rows)

    def _sampler(
        self, generation_kwargs: dict[str, Any], only_sampling: str | None = None
    ) -> tuple[GenerationSettings, int]:
        """Sampling settings and maximum reply length."""
        settings = self.settings
        if generation_kwargs:
            settings = GenerationSettings.from_kwargs(generation_kwargs, only_sampling=only_sampling)
        n_before = 1 if self._policy_model.config.is_encoder_decoder else self.max_prompt_length
        return settings.limited(self.max_reply_length, n_before)

    def reply_limit(self, **generation_kwargs: Any) -> int:
        """Return the maximum number of tokens of a reply with these settings; arguments as for :meth:`generate`."""
        return self._sampler(generation_kwargs)[1]

    def _beam_search(self, obs: Obs, settings: GenerationSettings, limit: int) -> Replies:
        with self._autocast():
            replies = beam_search(self, obs, settings, limit)
        replies.log_probs = replies.unmasked_log_probs = self.sequence_log_probs(replies)
        return replies

    def generate_ahead(self, observations: dict[str, Any]) -> None:
        """Let the backend begin the first replies of the next rollout during the update, if it can."""
        if self.backend is not None:
            self.backend.generate_ahead(cast(Obs, self.obs_to_tensor(observations)[0]), *self._sampler({}))

    def weights_will_change(self) -> None:
        """Notify the backend that its copy of the weights is outdated, and free memory of samplers for an update."""
        if self.backend is not None:
            self.backend.weights_will_change()
        GraphSampler.release_all()

    def graph_gaps(self, replies: Replies) -> list[float]:
        """Log-probabilities of graphs minus those of training, at tokens of eight replies; empty without graphs.

        If they differ by more than rounding, graphs are not used again, and all replies get those of training.
        """
        graphs: GraphSampler | None = vars(self).get("_graph_sampler")
        if graphs is None or not graphs.was_used:
            return []
        graphs.was_used, n = False, len(replies)
        # The longest replies, which have seen every size of the batch, and others.
        order = np.argsort(-replies.on_host.response.sum(axis=1), kind="stable")
        chosen = np.unique([*range(min(n, 4)), *np.linspace(0, n - 1, 5, dtype=int)])
        some = replies[torch.from_numpy(order[chosen])]
        assert some.log_probs is not None
        gaps = (some.log_probs - self.sequence_log_probs(some.to(self.device)).cpu())[some.response_mask]
        with self._autocast():
            limit = tolerance(self._policy_model) / 5  # of single tokens, and this of their mean
        if not (mean := float(gaps.abs().mean())) <= limit:
            vars(self)["_graph_sampler"] = None
            what = f"by {mean:.2g} nats on average, and by up to {float(gaps.abs().max()):.2g}"
            instead = "replies are now sampled token by token (generation.backend: transformers)"
            _logger.warning("log-probabilities of CUDA graphs differ from those of training %s: %s", what, instead)
            expected = replies.to(self.device).computed(self.sequence_log_probs, n_logits=self.n_logits).cpu()
            replies.log_probs = replies.unmasked_log_probs = expected
            if not self.has_reference:
                replies.ref_log_probs = expected
        return gaps.tolist()

    def compute(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function of the policy that runs its model; if weights are sharded, all processes must do so."""
        return function(self, *args)

    def predict_sequence_values(self, replies: Replies) -> Tensor:
        """Value of the state before each response token, 0 where masked. Shape (B, T)."""
        return replies.scattered(self._values(replies))

    @torch.no_grad()
    def sequence_log_probs(self, replies: Replies) -> Tensor:
        """Log-probabilities of the response tokens, as training computes them, 0 where masked. Shape (B, T)."""
        ids = replies.flat("response_ids")
        logits = self._logits(replies, self._policy_hidden(replies), ids)
        return replies.scattered(token_log_probs(logits, ids))

    @torch.no_grad()
    def reference_log_probs(self, replies: Replies) -> Tensor:
        """Log-probabilities (B, T) of response tokens under the reference or, without one, in sampling; 0 if masked."""
        if not self.has_reference and replies.unmasked_log_probs is not None:
            return replies.unmasked_log_probs
        with self.reference() as model:
            return self.log_probs_under(model, replies)

    def log_probs_under(self, model: PreTrainedModel, replies: Replies) -> Tensor:
        """Log-probabilities (B, T) of response tokens under a model, at the sampler's temperature; 0 if masked."""
        logits = self._head(model, self._hidden_states(self._trunk(model), replies))
        return replies.scattered(token_log_probs(logits, replies.flat("response_ids"), self.settings.temperature))

    def _step_editors(self, obs: Obs, settings: GenerationSettings) -> list[StepEditor]:
        """Editors of the logits for one generation with these observations and settings."""
        return []

    # -- the N agent tokens of replies ------------------------------------------------------------------------------

    def _hidden_states(self, trunk: nn.Module, replies: Replies) -> Tensor:
        """Hidden states before the agent tokens, in the policy's precision. Shape (N, H)."""
        casts: AbstractContextManager[None] = nullcontext()
        if self._casts_at_once and self.precision == "bf16" and self.device.type == "cuda" and not self.sharded:
            casts = cast_at_once(trunk, torch.bfloat16)
        with self._autocast(), casts:
            return self._response_hidden(trunk, replies)

    def _policy_hidden(self, replies: Replies) -> Tensor:
        """Hidden states of the trained model. Shape (N, H)."""
        return self._hidden_states(self._trunk(self._policy_model), replies)

    def _logits(self, replies: Replies, policy_hidden: Tensor, ids: Tensor | None = None) -> Tensor:
        """Logits at N tokens from hidden states (N, H); a mask allows the chosen ``ids`` (N,). Shape (N, V)."""
        return scale_logits(self._head(self._policy_model, policy_hidden), self.settings.temperature)

    def model_logits(self, policy_hidden: Tensor) -> Tensor:
        """Logits of the trained model alone, without temperature, mask and guidance. Shape (N, H) -> (N, V)."""
        return self._head(self._policy_model, policy_hidden)

    def _values(self, replies: Replies, policy_hidden: Tensor | None = None) -> Tensor:
        """Values of the states before N tokens; 0 without a critic. Shape (N,)."""
        head = self._value_head
        if head is None:
            return torch.zeros(replies.n_tokens, device=replies.prompt_ids.device)
        if head.trunk is not None:
            policy_hidden = self._hidden_states(head.trunk, replies.behind_secrets() if self._reads_secret else replies)
        return head(policy_hidden if policy_hidden is not None else self._policy_hidden(replies))

    # -- stable-baselines3's API: of tokens, and of whole replies where an observation has `response_ids` -----------

    def _logits_and_values(self, obs: Obs, ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits (N, V) and values (N,) at the tokens of observations; ``ids`` are the chosen tokens, if any."""
        replies = Replies.from_observations(obs)
        hidden = self._policy_hidden(replies)
        return self._logits(replies, hidden, ids), self._values(replies, hidden)

    def forward(self, obs: Obs, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Choose the next token: actions (B,), values (B, 1), log-probabilities (B,)."""
        logits, values = self._logits_and_values(obs)
        distribution = self._distribution(logits)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, values.unsqueeze(1), distribution.log_prob(actions)

    def evaluate_actions(self, obs: Obs, actions: Tensor) -> EvaluatedActions:
        """Values, log-probabilities and entropies of given actions."""
        logits, values = self._logits_and_values(obs, actions.long())
        return EvaluatedActions(values, token_log_probs(logits, actions.long()), token_entropy(logits))

    def get_distribution(self, obs: Obs) -> CategoricalDistribution:
        """Distribution of the next token of each observation, or of each of the N tokens of whole replies."""
        replies = Replies.from_observations(obs)
        return self._distribution(self._logits(replies, self._policy_hidden(replies)))

    def predict_values(self, obs: Obs) -> Tensor:
        """Value of each state, or before each of the N tokens of whole replies. Shape (N, 1)."""
        return self._values(Replies.from_observations(obs)).unsqueeze(1)

    def _predict(self, observation: Any, deterministic: bool = False) -> Tensor:
        return self.get_distribution(observation).get_actions(deterministic=deterministic)

    @staticmethod
    def _distribution(logits: Tensor) -> CategoricalDistribution:
        return CategoricalDistribution(logits.shape[-1]).proba_distribution(action_logits=logits)
