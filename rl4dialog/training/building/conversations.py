"""A run's conversations: the partner and whether it fits run, rewards and samples, and the environments."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl4dialog.catalog import AlgorithmRegistry, PartnerRegistry, ToolboxRegistry
from rl4dialog.core.config import OnPolicyConfig, TextConfig
from rl4dialog.core.config_blocks import ComponentConfig, EnvArgs
from rl4dialog.core.errors import ConfigError, DataError, RL4DialogError, raised
from rl4dialog.core.files import is_run
from rl4dialog.core.protocols import BatchedConversationReward, Partner, PartnerService
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.types import PartnerReply, Prompt, Sample
from rl4dialog.core.yaml_loader import load_yaml
from rl4dialog.data.pool import Data
from rl4dialog.data.sides import END, Sides
from rl4dialog.envs.conversation import Conversation, ConversationRules, OutsidePartner, PartnersSide
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.envs.worker import make_utterance_env
from rl4dialog.partners.language_model import LanguageModelPartner
from rl4dialog.partners.self_play import POOL_SIZE, SelfPlayPartner, check_pool
from rl4dialog.partners.several import SeveralPartners
from rl4dialog.policies.answering import answer_lengths, answer_settings
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.models import embedding_rows, named_model_positions
from rl4dialog.rollouts.conversing import Conversing
from rl4dialog.rollouts.task_rewards import TaskRewards
from rl4dialog.runs.run_folder import CONFIG_FILE, MODEL_FOLDER
from rl4dialog.scores.scoring import Scorer
from rl4dialog.text.end_of_turn import EndOfTurn, end_of_sequence_ids
from rl4dialog.training.building.policy import all_arguments
from rl4dialog.training.building.texts import Texts, build_toolbox, toolbox_of

_POOL = ("snapshot_every", "pool_size", "latest_share", "learns")


def plays_itself(chosen: ComponentConfig | None) -> bool:
    """Whether a partner is the agent itself, or one of several is."""
    return chosen is not None and any(_is_a(each, SelfPlayPartner) for each, _ in members_of(chosen))


def _is_a(chosen: ComponentConfig, kind: type[Any]) -> bool:
    partner = PartnerRegistry.resolve(chosen.id)
    return inspect.isclass(partner) and issubclass(partner, kind)


def members_of(chosen: ComponentConfig) -> list[tuple[ComponentConfig, str]]:
    """Each of several partners, or the only one, with the rest of its key."""
    if not _is_a(chosen, SeveralPartners):
        return [(chosen, "")]
    blocks = chosen.args.get("partners") or []
    found = [ComponentConfig(id=each["id"], args=each.get("args") or {}) for each in blocks]
    if any(_is_a(each, SeveralPartners) for each in found):
        raise ConfigError(f"partner {chosen.id!r} cannot be one of several; list its partners instead")
    return [(each, f".args.partners[{i}]") for i, each in enumerate(found)]


def n_weight_copies(config: TextConfig) -> tuple[int, bool]:
    """How many later copies of the weights self-play keeps at most, and whether it keeps the initial policy."""
    assert config.env is not None
    chosen, others = config.env.args.conversation_partner, config.train_evaluation.partner
    itself = [each for each, _ in members_of(chosen) if plays_itself(each)] if chosen is not None else []
    sizes = [each.args.get("pool_size") or POOL_SIZE for each in itself if each.args.get("snapshot_every")]
    return sum(sizes) - len(sizes), bool(sizes) or bool(itself and others is None)


def _self_play_arguments(
    chosen: ComponentConfig, config: TextConfig, texts: Texts, max_length: int, end: EndOfTurn, vocab_size: int
) -> dict[str, Any]:
    """Arguments that a partner that is the agent itself gets from the run."""
    who, found = f"partner {chosen.id!r}", texts.data.pools["train"].dialogue_format
    if found is None:
        cure = "use a datapool of dialogues, or another partner"
        raise ConfigError(f"{who} reads prompts in the datapool's format, and {config.datapool.id!r} has none; {cure}")
    kwargs = chosen.args.get("generation_kwargs") or dict(config.own_generation_block.kwargs)
    settings, positions = answer_settings(who, kwargs), None
    if not config.is_encoder_decoder:
        # Built-in models are built to fit.
        positions = named_model_positions(config.model_name) or texts.lengths.prompt + texts.lengths.room
    lengths = answer_lengths(who, config.model_name, positions, settings, texts.lengths.prompt, max_length)
    dialogue_format = replace(found, context_size=None, in_conversation=True)
    own_side = OutsidePartner(dialogue_format, end, vocab_size, *lengths)
    return {"own_side": own_side, "generation_kwargs": kwargs, "run_seed": config.seed}


AnyPartner = Partner | PartnerService


def check_partner(config: TextConfig) -> None:
    for chosen, where in _own_partners(config):
        PartnerRegistry.check(chosen.id, chosen.args, f"{where}.args")
        if _is_a(chosen, SeveralPartners):
            resolve_partner(chosen)
    for chosen, where in chosen_partners(config):
        PartnerRegistry.check(chosen.id, chosen.args, f"{where}.args")
        if plays_itself(chosen):
            check_pool(**{name: chosen.args[name] for name in _POOL if name in chosen.args})
    if config.env is not None and (toolbox := config.env.args.toolbox) is not None:
        ToolboxRegistry.check(toolbox.id, toolbox.args, "env.args.toolbox.args")
        build_toolbox(config, None)


def chosen_partners(config: TextConfig) -> list[tuple[ComponentConfig, str]]:
    """Partners of rollouts and evaluations, each of several, with their keys; empty if the run has none."""
    return [(each, where + path) for chosen, where in _own_partners(config) for each, path in members_of(chosen)]


def _own_partners(config: TextConfig) -> list[tuple[ComponentConfig, str]]:
    if config.env is None or config.env.args.conversation_partner is None:
        return []
    own = config.train_evaluation.partner
    others = [(own, "train_evaluation.partner")] if own is not None else []
    return [(config.env.args.conversation_partner, "env.args.partner"), *others]


def abilities(chosen: ComponentConfig) -> Any:
    """Return the object that says what a partner can do: the partner itself, or its class if building it is costly."""
    partner = PartnerRegistry.resolve(chosen.id)
    is_class = inspect.isclass(partner)
    is_provided = PartnerRegistry.provided & inspect.signature(partner).parameters.keys()
    if is_class and (issubclass(partner, PartnerService) or is_provided):
        return partner
    return resolve_partner(chosen)


def with_settings_of_run(chosen: ComponentConfig) -> ComponentConfig:
    """A language model as partner, with what the run that trained it says of it, if the folder of one is given."""
    folder = Path(str(chosen.args.get("model_name") or "")).expanduser()
    if not _is_a(chosen, LanguageModelPartner) or not is_run(folder):
        return chosen
    if not (folder / MODEL_FOLDER).is_dir():
        raise ConfigError(f"partner {chosen.id!r}: the run {folder} has no {MODEL_FOLDER}/, so it is not complete")
    run = load_yaml(folder / CONFIG_FILE)
    args, alg = run["datapool"].get("args") or {}, run["alg"]
    is_seq2seq = str(alg.get("model_type") or (alg.get("policy") or {}).get("id")).startswith("seq2seq")
    known: dict[str, Any] = {
        "format": args.get("format") or "eou",
        "architecture": "seq2seq" if is_seq2seq else "causal",
    }
    if args.get("learn") == "partner":
        known["ending"] = END
        if args.get("goal"):
            known |= {"persona_key": Sides(goal=args["goal"]).goal_key, "needs_persona": True}
    return ComponentConfig(id=chosen.id, args={**known, **chosen.args, "model_name": str(folder / MODEL_FOLDER)})


def build_partner(
    chosen: ComponentConfig,
    config: TextConfig,
    texts: Texts,
    end_of_turn: EndOfTurn | None = None,
    vocab_size: int | None = None,
    is_evaluation: bool = False,
) -> AnyPartner:
    """Build a partner; without a model, the end of replies and the size of the vocabulary are the tokenizer's."""
    assert config.env is not None
    if _is_a(chosen, SeveralPartners):
        given = end_of_turn, vocab_size, is_evaluation
        return resolve_partner(
            chosen, built=[build_partner(each, config, texts, *given) for each, _ in members_of(chosen)]
        )
    args, tokenizer, chosen = config.env.args, texts.tokenizer, with_settings_of_run(chosen)
    max_length = args.max_partner_length or texts.lengths.reply
    provided = {"tokenizer": tokenizer, "world": texts.data.world, "max_prompt_length": texts.lengths.prompt}
    if plays_itself(chosen):
        end = end_of_turn or _end_of_turn(texts)
        provided |= _self_play_arguments(chosen, config, texts, max_length, end, vocab_size or len(tokenizer))
        provided["is_frozen"] = is_evaluation and config.train_evaluation.partner is None
    partner = resolve_partner(chosen, max_length=max_length, **provided)
    if isinstance(partner, PartnerService):
        _check_first_prompts(partner.side, args, texts)
    return partner


def _end_of_turn(texts: Texts) -> EndOfTurn:
    """The end of replies without a model: that of the tokenizer."""
    return EndOfTurn(texts.tokenizer, end_of_sequence_ids(texts.tokenizer), texts.data.turn_marker)


def _check_first_prompts(outside: OutsidePartner, args: EnvArgs, texts: Texts) -> None:
    """Check that a partner in the main process accepts the first prompt of all conversations."""
    side = PartnersSide(outside, texts.lengths.prompt)

    def given(sample: Sample) -> list[str]:
        return (sample.meta_data or {}).get("history", [""]) if args.first_speaker == "sample" else []

    def kind(sample: Sample) -> tuple[int, str]:
        """Who speaks first in the prompt, and the persona in front of it."""
        return len(given(sample)) % 2, str((sample.meta_data or {}).get(outside.persona_key))

    def start(sample: Sample) -> None:
        side.begin(sample.meta_data or {})
        side.asked([] if args.first_speaker == "partner" else [*given(sample), "a"])

    _check_starts(texts.data, texts.data.pools, start, kind)


def _check_starts(
    data: Data, splits: Iterable[str], start: Callable[[Sample], Any], kind: Callable[[Sample], Hashable] = id
) -> None:
    """Check that samples can start a conversation: one of each kind, by default all of them."""
    known = set()
    for split in splits:
        for sample in data.samples(split):
            if (its_kind := kind(sample)) in known:
                continue
            known.add(its_kind)
            try:
                start(sample)
            except DataError as error:
                raise DataError(f"sample {sample.id!r} of the {split} split: {error}") from error


def check_partners_data(partner: Partner, data: Data, splits: Iterable[str]) -> None:
    """Check that a partner can start a conversation about every sample of these splits."""
    _check_starts(data, splits, lambda sample: partner.reset(sample.meta_data or {}, seed=0))


def resolve_partner(chosen: ComponentConfig, **provided: Any) -> AnyPartner:
    """Build a partner from its arguments and those that a run provides."""
    try:
        partner = PartnerRegistry.get(chosen.id, chosen.args, **provided)
    except RL4DialogError:
        raise
    except Exception as error:
        raise ConfigError(f"partner {chosen.id!r} cannot be built: {raised(error)}") from error
    if not isinstance(partner, (Partner, PartnerService)):
        wanted = "a subclass of Partner or PartnerService of rl4dialog.core.protocols"
        raise ConfigError(f"partner {chosen.id!r} is a {type(partner).__name__}; it must be {wanted}")
    return partner


def env_kwargs(
    config: TextConfig, texts: Texts, samples: Sequence[Any], parts: Sequence[RewardPart], partner: AnyPartner | None
) -> dict[str, Any]:
    """Return the arguments of each environment, except ``end_of_turn`` and ``vocab_size``, which are the model's."""
    assert config.env is not None
    args = config.env.args
    return {
        "samples": samples,
        "reward_parts": [part for part in parts if not part.in_main_process],
        "max_prompt_length": texts.lengths.prompt,
        "max_episode_length": texts.lengths.reply,
        "prompt_truncation_side": texts.lengths.truncation_side,
        "max_turns": args.max_turns,
        "priority_scale": args.priority_scale,
        "partner": partner if isinstance(partner, Partner) else None,
        "outside_partner": partner.side if isinstance(partner, PartnerService) else None,
        "toolbox": toolbox_of(config, texts) if partner is not None else None,
        "frame": texts.data.pools["train"].frame() if partner is not None else None,
        "first_speaker": args.first_speaker,
        "max_partner_length": args.max_partner_length,
        "context_turns": args.context_turns,
        "end_when": args.end_when.model_dump(),
        "shares_dialogues": any(isinstance(part.function, BatchedConversationReward) for part in parts),
    }


def build_conversing(config: TextConfig, texts: Texts, scorer: Scorer | None) -> Conversing | None:
    """Build the conversations of evaluations; ``None`` if the run has no partner."""
    if config.env is None:
        return None
    chosen = config.train_evaluation.partner or config.env.args.conversation_partner
    if chosen is None:
        return None
    partner = build_partner(chosen, config, texts, is_evaluation=True)
    is_scored = config.train_evaluation.score_predictions
    return conversing_with(partner, config, texts, scorer if is_scored else None)


def conversing_with(
    partner: AnyPartner | None, config: TextConfig, texts: Texts, scorer: Scorer | None, n_secret: int = 0
) -> Conversing:
    """Build conversations with a partner, or single replies; `n_secret` is the length of secrets to show."""
    timeout_s = config.reward_fn.timeout_s if config.reward_fn is not None else None
    samples = [Sample(0, "", [])]  # each conversation is given its own
    kwargs = env_kwargs(config, texts, samples, scorer.parts if scorer is not None else [], partner)
    kwargs["max_secret_length"] = n_secret or None
    service = partner if isinstance(partner, PartnerService) else None

    def make_env(policy: LMActorCriticPolicy, max_length: int) -> UtteranceView:
        of_model = {"end_of_turn": policy.end_of_turn, "vocab_size": embedding_rows(policy.language_model)}
        # Only now, because in self-play it depends on the policy.
        side = {"outside_partner": service.side} if service is not None else {}
        return make_utterance_env({**kwargs, **of_model, **side, "max_episode_length": max_length}, timeout_s)

    rewards = build_task_rewards(scorer) if scorer is not None else None
    return Conversing(make_env, service, rewards, max(config.n_iters or 1, 1), timeout_s)


def why_unmeasured(config: TextConfig, repeats: bool = True) -> str | None:
    """Why the critic of a run cannot be measured, in conversations that are repeated or not; ``None`` if it can."""
    if not isinstance(config, OnPolicyConfig) or not AlgorithmRegistry.resolve(config.alg.id).needs_critic:
        return f"alg.id: {config.alg.id} has no critic"
    if (chosen := config.env.args.conversation_partner) is None or not repeats:
        return None
    for each, _ in members_of(chosen):
        reason = getattr(PartnerRegistry.resolve(each.id), "unrepeatable", None)
        if plays_itself(each) and (each.args.get("snapshot_every") or each.args.get("learns") == "both"):
            reason = "only with the current policy, which is not trained on both sides"
        if reason:
            return f"conversations with partner {each.id!r} cannot be repeated: {reason}"
    return None


def build_task_rewards(scorer: Scorer) -> TaskRewards:
    """Build the sum of all rewards of a conversation."""
    in_main = [part for part in scorer.parts if part.in_main_process]
    return TaskRewards(scorer.parts, replace(scorer, parts=in_main).values)


def fewest_conversations(config: OnPolicyConfig) -> int:
    """How many conversations a run begins at least: if all have the maximum length, and those at its end."""
    n_tokens = all_arguments(config)["n_steps"] * config.env.n_envs
    longest = config.env.args.max_turns * config.env.args.max_episode_length
    return config.n_iters * max(config.env.n_envs, math.ceil(n_tokens / longest)) + config.env.n_envs


def check_conversations(config: TextConfig, texts: Texts) -> None:
    """Check the dialogue format, and that all samples can start a conversation, with each partner of the run."""
    if config.env is None:
        return
    args = config.env.args
    if args.conversation_partner is not None:
        texts.data.pools["train"].frame()
    if isinstance(config, OnPolicyConfig) and args.once:
        n, needed = len(texts.data.pools["train"]), fewest_conversations(config)
        if n < needed:
            wanted = f"at least {needed:,} samples, one for each conversation, and the train split has {n:,}"
            cure = "use more samples, or fewer iterations, environments or steps"
            raise ConfigError(f"env.args.once: the run needs {wanted}; {cure}")
    _check_partners_data(config, args, texts)
    _check_secrets(config, args, texts)
    rules, lengths = ConversationRules(first_speaker=args.first_speaker), texts.lengths
    conversation = Conversation(rules, _end_of_turn(texts), lengths.prompt, lengths.truncation_side)

    def start(sample: Sample) -> None:
        conversation.begin(sample, seed=0)
        if args.first_speaker == "partner":
            conversation.hear_opening(PartnerReply("a"))

    def opening(sample: Sample) -> tuple[Any, ...] | None:
        """The beginning of a prompt, and the markup at its end, on which the room for a turn depends."""
        prompt = sample.prompt_or_input_text
        return (prompt.opening, prompt.agent_opening, prompt.last_markup) if isinstance(prompt, Prompt) else None

    _check_starts(texts.data, texts.data.pools, start, opening)


def _check_secrets(config: TextConfig, args: EnvArgs, texts: Texts) -> None:
    """Check that the critic can read a secret, if it does, before the prompt of every train sample."""
    lengths, chosen, key = texts.lengths, args.conversation_partner, None
    if not lengths.secret:
        return
    n, n_positions = lengths.secret + lengths.prompt, named_model_positions(config.model_name)
    n, reply = (n, "") if config.is_encoder_decoder else (n + lengths.room, " + max_episode_length")
    if n_positions is not None and n > n_positions:
        names = f"env.args.max_secret_length + max_prompt_length{reply}"
        raise ConfigError(f"{names} is {n}, but {config.model_name!r} has only {n_positions} positions; reduce one")
    for each in [None] if chosen is None else [member for member, _ in members_of(chosen)]:
        partner = None
        if each is not None:
            given = {**PartnerRegistry.defaults(each.id), **with_settings_of_run(each).args}
            key = given.get("persona_key", OutsidePartner.persona_key)
            partner = build_partner(each, config, texts) if hasattr(abilities(each), "secret") else None
        assert partner is None or isinstance(partner, Partner)
        conversation = Conversation(ConversationRules(), _end_of_turn(texts), lengths.prompt, partner=partner)
        for sample in texts.data.samples("train"):
            conversation.prepare(sample, seed=0)
            conversation.secret_ids(lengths.secret, key)


def _check_partners_data(config: TextConfig, args: EnvArgs, texts: Texts) -> None:
    # Without rollouts, only evaluations hold conversations, and train samples may be single replies from elsewhere.
    splits = [split for split in texts.data.pools if config.has_rollouts or split != "train"]
    for chosen, _ in chosen_partners(config):
        found = PartnerRegistry.resolve(chosen.id)
        if not (inspect.isclass(found) and issubclass(found, Partner) and found.checks_samples):
            continue
        partner = build_partner(chosen, config, texts)
        assert isinstance(partner, Partner)
        check_partners_data(partner, texts.data, splits)
