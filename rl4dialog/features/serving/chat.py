"""A chat with one language model or two: the models, the immutable state, and the actions of a person.

Each action takes a state and returns the next one, independently of page or terminal. Feedback is written to disk
before the state records it. If writing fails, the action raises and the state is unchanged.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.config import TextConfig
from rl4dialog.core.errors import ConfigError, DataError, RewardError, RL4DialogError, shown
from rl4dialog.core.feedback import Feedback, JudgedReply, append_feedback
from rl4dialog.core.protocols import Toolbox
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Frame, PartnerReply
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.features.serving.replies import PartialReply, TokenDetails, stream_reply
from rl4dialog.functional.replies import Replies
from rl4dialog.inference.loading import LoadedPolicy, check_learns_v
from rl4dialog.policies.generation import GenerationSettings, without_beams
from rl4dialog.scores.scoring import ReplyScores
from rl4dialog.text.prompts import History, written_calls

_logger = logging.getLogger(__name__)
_RATINGS = {1: "up", -1: "down"}
_MAX_CALLS = 8  # of tools, after one message


def introduction(config: TextConfig, is_trained: bool = True) -> str:
    """Who a model is, what it is for, and who a person is who talks to it."""
    data, env = config.datapool, config.env
    columns, path = data.args.get("columns"), data.args.get("path")
    file = next(iter(path.values()), None) if isinstance(path, Mapping) else path
    source = f"the datapool {data.id}" if file is None else Path(str(file)).name
    sentences = [f"You talk to {config.model_name}."]
    if is_trained:
        aim = f", for the reward {config.reward_fn.id}" if config.reward_fn is not None and config.uses_reward else ""
        sentences = [f"You talk to {config.model_name}, trained with {config.alg.id} on {source}{aim}."]
    partner = None if env is None else env.args.conversation_partner
    role = "" if partner is None else getattr(PartnerRegistry.resolve(partner.id), "role", "")
    if not role and isinstance(columns, Mapping) and isinstance(asked := columns.get("prompt"), str):
        answered = columns.get("references")
        role = f"Write messages like those in the column {asked!r}"
        role += f"; it replies like {answered!r}." if isinstance(answered, str) else "."
    return " ".join(filter(None, [*sentences, role]))


class ChatAgent:
    """A policy that takes part in conversations."""

    def __init__(self, loaded: LoadedPolicy, name: str) -> None:
        self.name, self._loaded = name, loaded
        if loaded.dialogue_format is None:
            raise ConfigError(
                f"datapool {loaded.config.datapool.id!r} of {name} contains no dialogues, so chat is not available; "
                "use rl4dialog generate instead"
            )
        if loaded.config.task is not None:
            raise ConfigError(
                f"{name} was trained for the task {loaded.config.task.id}: its prompts have a belief and counts of the "
                f"database; to talk to it, use rl4dialog chat, or rl4dialog ui without --compare and --teach"
            )
        self.dialogue_format: DialogueFormat = loaded.dialogue_format
        left_out = loaded.generation_kwargs.keys() - self.generation_kwargs.keys()
        if left_out:
            _logger.warning(
                "%s is evaluated with %s, which chats do not support; the chat ignores it",
                name,
                ", ".join(sorted(left_out)),
            )

    @property
    def generation_kwargs(self) -> Mapping[str, Any]:
        """Default sampling settings: those of the run's evaluations, without beam search."""
        return without_beams(self._loaded.generation_kwargs)

    @property
    def persona(self) -> str | None:
        return self._loaded.persona

    @property
    def toolbox(self) -> Toolbox | None:
        return self._loaded.toolbox

    @property
    def beta(self) -> float | None:
        return self._loaded.beta

    def stream(
        self, prompt: str, seed: int | None = None, beta: float | None = None, **generation_kwargs: Any
    ) -> Iterator[PartialReply]:
        """Generate a reply token by token, as ``generate`` does; the last item is the whole reply.

        A policy that searches for replies (``guidance.search``) gives only the whole one.
        """
        loaded, kwargs = self._loaded, {**self.generation_kwargs, **generation_kwargs}
        ids = loaded.prompt_ids(prompt)
        if loaded.searches:
            with loaded.guided_by(beta):
                *_, found = stream_reply(loaded.policy, ids, seed, **kwargs)
            yield found
            return
        parts = stream_reply(loaded.policy, ids, seed, **kwargs)
        while True:
            with loaded.guided_by(beta):  # not around the yield, which would affect other replies
                part = next(parts, None)
            if part is None:
                return
            yield part

    @property
    def max_prompt_tokens(self) -> int:
        return self._loaded.lengths.prompt

    def read(self, prompt: str) -> History:
        """What the model reads of a prompt."""
        return self._loaded.read(prompt)

    def score(self, prompt: str, reply: str, meta_info: dict[str, Any], on_error: str = "raise") -> ReplyScores:
        """Compute the run's reward of one reply and its parts, without references and partner."""
        return self._loaded.scores([prompt], [reply], meta_infos=[meta_info], on_error=on_error)

    @torch.no_grad()
    def token_details(self, prompt: str, token_ids: Sequence[int], beta: float | None = None) -> TokenDetails:
        """Compute log-probability, value, KL and advantage for each token of a reply.

        They use the run's temperature. A policy that values guide has its values, and its language model is the
        reference. Others have the critic of their latest checkpoint, and the initial model of the run as the reference.
        """
        loaded, policy = self._loaded, self._loaded.policy
        batch = Replies.from_ids([loaded.prompt_ids(prompt)], [token_ids], policy.device)
        with loaded.guided_by(beta):
            log_probs = policy.sequence_log_probs(batch)
        texts = [str(policy.end_of_turn.tokenizer.decode([id])) for id in token_ids]
        details = TokenDetails(texts, log_probs[0].tolist())

        def kl() -> Tensor:
            if self.beta is not None:
                return log_probs - loaded.guiding_policy.prior_log_probs(batch)
            return log_probs - loaded.reference_policy.reference_log_probs(batch)

        def advantages() -> Tensor:
            found: Tensor = loaded.guiding_policy.advantages(batch)
            check_learns_v(loaded.config, "advantages")
            return found

        known = {"values": lambda: loaded.policy_with_critic.predict_sequence_values(batch), "kl": kl}
        for name, numbers in {**known, "advantages": advantages}.items():
            try:
                setattr(details, name, numbers()[0].tolist())
            except RL4DialogError as error:
                details.missing[name] = str(error)
        return details


@dataclass(frozen=True)
class Reply:
    """A reply, complete or in progress, and what is known and recorded about it."""

    model: str
    prompt: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finished: bool = False
    reward: tuple[str, ...] = ()  # with why parts of it are missing, unless that was already said
    details: TokenDetails | None = None
    no_details: str | None = None  # why there are none, if computing them failed
    rating: int | None = None  # 1 for up, -1 for down
    correction: str | None = None


@dataclass(frozen=True)
class Exchange:
    """A user message and the replies to it, one per model; that of a model that was not asked stays empty."""

    text: str
    persona: str | None
    replies: tuple[Reply, ...]
    before: tuple[str, ...] = ()  # the turns before the message, as the models read them
    # Index of the reply that continues the conversation, possibly corrected; ``None`` until one of two is chosen.
    chosen: int | None = None
    of_tool: bool = False  # whether the message is the answer of a tool to the reply before it
    preferred: int | None = None  # index of the reply that is recorded as the better one of two

    @property
    def turns(self) -> list[str]:
        """The turns that the replies answer."""
        return [*self.before, self.text]

    @property
    def was_choice(self) -> bool:
        """Whether one of two replies was chosen, so that the choice can be taken back."""
        n_asked = sum(bool(reply.text or reply.finished) for reply in self.replies)
        return n_asked > 1 and self.chosen is not None and not self.is_corrected

    @property
    def said(self) -> str | None:
        """Text that continues the conversation; ``None`` until the user chooses one of two replies."""
        if self.chosen is None:
            return None
        reply = self.replies[self.chosen]
        return reply.text if reply.correction is None else reply.correction

    @property
    def is_corrected(self) -> bool:
        return self.chosen is not None and self.replies[self.chosen].correction is not None

    def origin(self, index: int) -> str:
        """Source of the text in a model's column; empty if it is this model's own reply."""
        if self.chosen is None:
            return ""
        whose = "" if len(self.replies) == 1 else f" of {self.chosen + 1}: {self.replies[self.chosen].model}"
        if self.is_corrected:
            return f"your correction of the reply{whose}"
        return "" if self.chosen == index else f"the reply{whose}"

    def with_reply(self, index: int, reply: Reply) -> Exchange:
        return replace(self, replies=(*self.replies[:index], reply, *self.replies[index + 1 :]))


@dataclass(frozen=True)
class Settings:
    """Settings of the next replies; ``None`` stands for each model's own."""

    persona: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_new_tokens: int | None = None
    beta: float | None = None
    only: int | None = None  # index of the model that replies; ``None`` for all

    @property
    def sampling(self) -> dict[str, float]:
        """The sampling settings that differ from each model's own."""
        given = {"temperature": self.temperature, "top_p": self.top_p, "max_new_tokens": self.max_new_tokens}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class ChatState:
    """The state of a chat after a user action."""

    settings: Settings = Settings()
    exchanges: tuple[Exchange, ...] = ()
    # Missing reward parts that were already reported: index of the model, and parts.
    told: frozenset[tuple[int, str]] = frozenset()
    n_asked: int = 0  # messages sent so far, including those that were undone
    note: str = ""  # result of the last action, for the user
    revision: int = 0  # number of states before this one

    @property
    def last(self) -> Exchange | None:
        return self.exchanges[-1] if self.exchanges else None

    @property
    def awaits_choice(self) -> bool:
        """Whether the user has to choose one of two replies before the conversation continues."""
        return self.last is not None and self.last.said is None

    @property
    def turns(self) -> list[str]:
        """All turns, oldest first, without an exchange that awaits a choice."""
        return [text for each in self.exchanges if each.said is not None for text in (each.text, each.said)]

    def with_exchange(self, number: int, exchange: Exchange, note: str | None = None) -> ChatState:
        exchanges = [*self.exchanges]
        exchanges[number] = exchange
        return replace(self, exchanges=tuple(exchanges), note=self.note if note is None else note)

    def until(self, number: int, note: str = "") -> ChatState:
        return replace(self, exchanges=self.exchanges[:number], note=note)

    def settled(self) -> ChatState:
        """A copy without a last exchange that was stopped before any model generated text."""
        if self.last is None or any(reply.text or reply.finished for reply in self.last.replies):
            return self
        return self.until(-1, self.note)

    def messages(self, index: int) -> list[dict[str, str]]:
        """Chat messages in a model's column."""
        found = []
        for each in self.exchanges:
            said = each.replies[index].text if each.said is None else each.said
            role = "tool" if each.of_tool else "user"
            found += [{"role": role, "content": each.text}, {"role": "assistant", "content": said}]
        return found


class Chat:
    """Conversations with one model, or with two side by side.

    With a seed, the first model gives the same replies on the page and in the terminal. Replies get their reward and
    its parts, and the numbers of their tokens, if they are to be shown.
    """

    def __init__(
        self,
        models: Sequence[ChatAgent],
        feedback: Path,
        seed: int | None = None,
        show_reward: bool = False,
        show_tokens: bool = True,
    ) -> None:
        self.models, self.feedback = tuple(models), feedback
        self._seed, self._show_reward, self._show_tokens = seed, show_reward, show_tokens

    def send(
        self,
        state: ChatState,
        text: str,
        settings: Settings | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
        of_tool: bool = False,
    ) -> Iterator[ChatState]:
        """Send a message to the models and yield the state after every token, and finally the examined one.

        If the reply calls a tool, its answer is sent next, as the message of a tool.

        Every yielded state can be continued: a reply that is stopped, as `is_stopped` says after every token, keeps the
        text generated so far. The settings are those of this and the next replies.
        """
        state = state.settled()
        if state.awaits_choice:
            raise ConfigError("choose one of the two replies first, to continue the conversation with it")
        text, state = text.strip(), self.changed(state, settings or Settings())
        persona, before = state.settings.persona, tuple(state.turns)
        replies = tuple(Reply(model.name, _prompt(model, [*before, text], persona)) for model in self.models)
        only = 0 if len(self.models) == 1 else state.settings.only
        exchange = Exchange(text, persona, replies, before, only, of_tool)
        state = replace(state, exchanges=(*state.exchanges, exchange), n_asked=state.n_asked + 1)
        yield state
        for said in self._replies(exchange, state):
            state = state.with_exchange(-1, said)
            yield state
            if is_stopped():
                break
        state = self.examined(state).settled()
        yield state
        if (answer := self._called(state)) is not None and not is_stopped():
            is_last = answer.leaves or all(each.of_tool for each in state.exchanges[-_MAX_CALLS:])
            text = Frame("", "", self.models[0].dialogue_format.reserved).bare(answer.text or "")
            if not is_last:
                yield from self.send(state, text, state.settings, is_stopped, of_tool=True)
            else:
                why = "The call ends the conversation." if answer.leaves else "The model only calls tools."
                yield replace(state, note=f"tool: {text} ({why})")

    def _called(self, state: ChatState) -> PartnerReply | None:
        """The answer of a tool to the last reply, if this is a call; earlier calls are repeated before it."""
        if state.last is None or state.last.chosen is None or not state.last.replies[state.last.chosen].finished:
            return None
        model, answer = self.models[state.last.chosen], None
        if (toolbox := copy.deepcopy(model.toolbox)) is not None:
            toolbox.reset({}, derive_seed(self._seed or 0, "tools"))
            for said in state.turns[1::2]:
                answer = toolbox.answer(said) if toolbox.takes(said) else None
        return answer

    def examined(self, state: ChatState) -> ChatState:
        """The state with rewards and token details of the last replies."""
        exchange, told = state.last, set(state.told)
        assert exchange is not None
        for index, (model, reply) in enumerate(zip(self.models, exchange.replies, strict=True)):
            if exchange.chosen not in (None, index):
                continue
            if self._show_reward:
                known = {missing for i, missing in told if i == index}
                reward, missing = _reward_in_words(model, exchange, reply, known)
                reply = replace(reply, reward=reward)
                told |= {(index, missing)} if missing else set()
            if self._show_tokens:
                try:
                    details = model.token_details(reply.prompt, reply.token_ids, _beta(model, state))
                    reply = replace(reply, details=details)
                except RL4DialogError as error:
                    reply = replace(reply, no_details=str(error))
            exchange = exchange.with_reply(index, reply)
        return replace(state.with_exchange(-1, exchange), told=frozenset(told))

    def choose(self, state: ChatState, index: int | None) -> ChatState:
        """Continue with the better one of two replies; ``None`` records nothing and takes the first one."""
        if state.last is None or not state.awaits_choice:
            raise ConfigError("there is nothing to choose: a reply was already chosen")
        chosen = replace(state.last, chosen=index or 0, preferred=index)
        note = f"Nothing was recorded; the conversation continues with the reply of {chosen.replies[0].model}."
        if index is not None:
            note = self.record(chosen, "preference", chosen.replies, chosen=index)
        return state.with_exchange(-1, chosen, note)

    def take_back_choice(self, state: ChatState) -> ChatState:
        """Take back the choice between the last two replies, so that it can be made again."""
        exchange, note = state.last, ""
        if exchange is None or not exchange.was_choice:
            raise ConfigError("there is no choice to take back")
        if exchange.preferred is not None:
            note = self.record(exchange, "preference", exchange.replies, True, chosen=exchange.preferred)
        return state.with_exchange(-1, replace(exchange, chosen=None, preferred=None), note)

    def rate(self, state: ChatState, index: int, rating: int | None, number: int = -1) -> ChatState:
        """Rate the reply of a model in an exchange: 1 for up, -1 for down, ``None`` to take the rating back."""
        exchange, reply = _judged(state, index, number)
        if reply.correction is not None:
            raise ConfigError("this reply was corrected; the column shows your correction, which cannot be rated")
        if reply.rating == rating:
            raise ConfigError(f"this reply is already rated {_RATINGS[rating]}" if rating else "it has no rating")
        note = self.record(exchange, "rating", [reply], rating is None, rating=rating or reply.rating)
        return state.with_exchange(number, exchange.with_reply(index, replace(reply, rating=rating)), note)

    def correct(self, state: ChatState, index: int, correction: str, number: int = -1) -> ChatState:
        """Correct a reply and continue the conversation with the correction; the model's own text takes it back."""
        exchange, reply = _judged(state, index, number)
        correction = correction.strip()
        if reply.correction is not None and correction == reply.text.strip():
            note = self.record(exchange, "correction", [reply], True, correction=reply.correction)
            return state.with_exchange(number, exchange.with_reply(index, replace(reply, correction=None)), note)
        if not correction:
            raise ConfigError("a correction cannot be empty")
        for model in self.models:
            model.dialogue_format.check_said(correction)
        if correction in (reply.text, reply.correction):
            raise ConfigError("a correction must differ from the current text")
        note = self.record(exchange, "correction", [reply], correction=correction)
        exchange = exchange.with_reply(index, replace(reply, correction=correction))
        return state.with_exchange(number, replace(exchange, chosen=index), note)

    def undo(self, state: ChatState) -> ChatState:
        """Remove the last message of the user and what followed it; feedback recorded about it is kept."""
        asked = [i for i, each in enumerate(state.exchanges) if not each.of_tool]
        if not asked:
            return replace(state, note="There is nothing to undo.")
        return state.until(asked[-1], f"Undone: {state.exchanges[asked[-1]].text}")

    def reset(self, state: ChatState) -> ChatState:
        """Clear the conversation; the settings and recorded feedback stay."""
        return state.until(0, "The conversation was cleared; recorded feedback is kept.")

    def record(
        self, exchange: Exchange, kind: str, replies: Sequence[Reply], withdrawn: bool = False, **verdict: Any
    ) -> str:
        """Append feedback on an exchange to the file, and return the note for the user."""
        judged = [JudgedReply(reply.model, reply.text) for reply in replies]
        given = Feedback(kind, exchange.turns, judged, persona=exchange.persona, withdrawn=withdrawn, **verdict)
        append_feedback(self.feedback, given)
        return f"The {kind} was {'withdrawn in' if withdrawn else 'appended to'} {self.feedback}."

    def changed(self, state: ChatState, settings: Settings) -> ChatState:
        """The state with checked settings of the next replies."""
        beta, greedy = settings.beta, [model.name for model in self.models if not samples(model)]
        if settings.only not in (None, *range(len(self.models))):
            raise ConfigError(f"there is no model {shown(settings.only)}")
        if beta is not None and (isinstance(beta, bool) or not 0 <= beta < math.inf):
            raise ConfigError(f"beta must be a number of at least 0, not {shown(beta)}")
        GenerationSettings.from_kwargs(settings.sampling, "settings")
        note = ""
        if settings.temperature is not None and greedy:
            note = f"{' and '.join(greedy)}: no sampling, so the temperature has no effect."
        persona = (settings.persona or "").strip() or None
        return replace(state, settings=replace(settings, persona=persona), note=note)

    def _replies(self, exchange: Exchange, state: ChatState) -> Iterator[Exchange]:
        """Yield the exchange after every token; two models alternate."""
        streams = {}
        for index, (model, reply) in enumerate(zip(self.models, exchange.replies, strict=True)):
            if exchange.chosen in (None, index):
                # Two instances of the same model get different seeds.
                other = [index] if index else []
                seed = None if self._seed is None else derive_seed(self._seed, "chat", state.n_asked, *other)
                streams[index] = model.stream(reply.prompt, seed, _beta(model, state), **state.settings.sampling)
        while streams:
            for index, stream in list(streams.items()):
                part = next(stream, None)
                if part is None:
                    del streams[index]
                    continue
                reply = exchange.replies[index]
                reply = replace(reply, text=part.text, token_ids=tuple(part.token_ids), finished=part.finished)
                exchange = exchange.with_reply(index, reply)
                yield exchange


def samples(model: ChatAgent) -> bool:
    return GenerationSettings.from_kwargs(model.generation_kwargs).do_sample


def takes_persona(model: ChatAgent) -> bool:
    """Whether prompts can have a persona: some had one in training, or it is a system message."""
    return model.persona != "" or model.dialogue_format.name == "chat_template"


def _prompt(model: ChatAgent, turns: Sequence[str], persona: str | None) -> str:
    """The prompt for the reply to the last turn, a message of the user."""
    for said in (turns[-1], persona or ""):
        model.dialogue_format.check_said(said)
    if not turns[-1].strip():
        raise DataError("a message cannot be empty")
    prompt = model.dialogue_format.prompt(model.dialogue_format.context(turns), persona)
    return prompt if model.toolbox is None else written_calls(model.toolbox, prompt)


def _beta(model: ChatAgent, state: ChatState) -> float | None:
    """Beta of a model in a chat; ``None`` for its own, or if no values guide it."""
    return None if model.beta is None else state.settings.beta


def _judged(state: ChatState, index: int, number: int) -> tuple[Exchange, Reply]:
    if not -1 <= number < len(state.exchanges) or not state.exchanges:
        raise ConfigError("there is no reply to judge yet")
    exchange = state.exchanges[number]
    if exchange.chosen not in (None, index):
        raise ConfigError(f"this column shows {exchange.origin(index)}; give feedback in the column of that reply")
    return exchange, exchange.replies[index]


def _reward_in_words(
    model: ChatAgent, exchange: Exchange, reply: Reply, told: Collection[str]
) -> tuple[tuple[str, ...], str]:
    """The reward of a reply as far as it can be computed, with the reason unless it was `told`; and missing parts."""
    meta_info: dict[str, Any] = {"history": model.dialogue_format.context(exchange.turns)}
    if exchange.persona:
        meta_info["persona"] = [exchange.persona]  # the name that datapools use
    try:
        # One part may need a reference text while the others do not.
        scores = model.score(reply.prompt, reply.text, meta_info, on_error="mask")
    except RL4DialogError as error:
        return () if "all parts" in told else (f"no reward: {error}",), "all parts"
    known = {name: values[0] for name, values in scores.parts.items() if not math.isnan(values[0])}
    parts = ", ".join(f"{name} {value:.3f}" for name, value in known.items())
    missing = ", ".join(name for name in scores.parts if name not in known)
    if not missing:
        return (f"reward {scores.total[0]:.3f} ({parts})",), ""
    found = [f"available reward parts: {parts}"] if parts else []
    if missing not in told:
        found.append(f"cannot compute {missing} in this chat, which has no references and no partner")
        try:
            model.score(reply.prompt, reply.text, meta_info)
        except RewardError as error:
            found[-1] += f": {error}"
    return tuple(found), missing
