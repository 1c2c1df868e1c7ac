"""Agents for a task, in dialogue acts or in words; a person's dialogue with one, about a goal or without; its page."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import MultiBinary
from stable_baselines3.common.vec_env import DummyVecEnv

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.untrusted import visible
from rl4dialog.features.dialogue_acts.agent import TurnLevelAgent
from rl4dialog.features.dialogue_acts.tasks.acts import BYE, GENERAL, INFORM, DialogueAct
from rl4dialog.features.dialogue_acts.tasks.dialogue import BeliefState, Lexicalizer, TaskDialogue
from rl4dialog.features.dialogue_acts.tasks.environment import DialogueActEnv
from rl4dialog.features.dialogue_acts.tasks.goals import Goal, goal_text
from rl4dialog.features.dialogue_acts.tasks.outcome import Exchange, Outcome, outcome_of
from rl4dialog.features.dialogue_acts.tasks.placeholders import ReplyReader
from rl4dialog.features.dialogue_acts.tasks.text_task import user_text
from rl4dialog.features.dialogue_acts.tasks.world import World
from rl4dialog.features.serving.page import Bubble, Page, Updates, Visit, help_html, note_html, status_html
from rl4dialog.features.serving.terminal import LineChat, ReadLine, Write, commands_of, speaker
from rl4dialog.inference.loading import Agent, LoadedPolicy
from rl4dialog.training.building.texts import task_world

NOTHING = "(nothing)"
"""What is shown for an agent that says nothing."""
_NO_GOAL = Goal("", {})
_NEXT = "New goal or Free chat begins another dialogue."
# The time to understand a text grows with the square of its length.
_MAX_CHARACTERS = 2000


@dataclass(frozen=True)
class TaskReply:
    """A turn of the agent."""

    # Acts in what the person said; empty if nothing was understood, and then the agent says nothing.
    understood: list[DialogueAct]
    acts: tuple[DialogueAct, ...]
    text: str  # the same in words; empty if the agent says nothing


class TaskAgent(ABC):
    """An agent in a conversation with a person, about a goal or without one."""

    def __init__(self, name: str, world: World, seed: int | None = None) -> None:
        self.name, self.world = name, world
        self._rng = np.random.default_rng(seed)
        self.reset()

    @property
    def domains(self) -> tuple[str, ...]:
        """What the agent can talk about."""
        return tuple(self.world.ontology.domains)

    def reset(self) -> None:
        """Begin a new dialogue, without a goal."""
        self._goal, self._has_begun = _NO_GOAL, False

    def draw_goal(self) -> str:
        """Begin a new dialogue about a test goal, and return the goal in words."""
        self.reset()
        goals = self.world.goals["test"]
        self._goal = goals[int(self._rng.integers(len(goals)))]
        return goal_text(self._goal.domains, self.world.templates)

    def reply(self, text: str) -> TaskReply:
        """Reply to what a person said."""
        if not self._has_begun:
            self._begin(self._goal)
            self._has_begun = True
        understood = self._understand(text)
        if not understood:
            return TaskReply([], (), "")
        if any(act.intent == BYE for act in understood):  # a simulated user's goodbye ends the dialogue, too
            goodbye = DialogueAct(BYE, GENERAL)
            return TaskReply(understood, (goodbye,), self.world.templates.render([goodbye], "agent"))
        exchange = self._answer(understood)
        said = exchange.text or self.world.templates.render(exchange.said, "agent")
        return TaskReply(understood, exchange.said, said)

    def outcome(self) -> Outcome | None:
        """Outcome of the dialogue so far; ``None`` without a goal or a dialogue."""
        if self._goal is _NO_GOAL or not self._has_begun or not self._exchanges:
            return None
        return outcome_of(self._goal, self._exchanges, True, self.world.database)

    @property
    @abstractmethod
    def _exchanges(self) -> Sequence[Exchange]:
        """Turns of the dialogue."""

    @abstractmethod
    def _begin(self, goal: Goal) -> None:
        """Begin a dialogue."""

    @abstractmethod
    def _understand(self, text: str) -> list[DialogueAct]:
        """Acts in what the person said."""

    @abstractmethod
    def _answer(self, understood: list[DialogueAct]) -> Exchange:
        """Answer what was understood."""


class WordsAgent(TaskAgent):
    """A language model that writes placeholders, which the person reads as values.

    What the person says is understood by the world's templates, without semantic errors. The model reads it in the
    words of templates, with belief and database counts, as in training.
    """

    def __init__(self, loaded: LoadedPolicy, name: str, seed: int | None = None) -> None:
        world = task_world(loaded.config.task)
        if world is None:
            raise ConfigError(f"{name} was not trained for a task")
        self._loaded, self._seed = loaded, seed
        args = loaded.config.env.args if loaded.config.env is not None else None
        self._n_shown = args.context_turns if args is not None else None
        super().__init__(name, world(), seed)
        self._lexicalizer = Lexicalizer(self.world.database)
        self._reader = ReplyReader(self.world.templates)

    @property
    def _exchanges(self) -> Sequence[Exchange]:
        return self._dialogue.exchanges

    def _begin(self, goal: Goal) -> None:
        self._dialogue = TaskDialogue(goal, BeliefState(self.world.ontology), self._lexicalizer, self._rng)
        self._history: list[str] = []

    def _understand(self, text: str) -> list[DialogueAct]:
        active = [DialogueAct(INFORM, self._dialogue.belief.active)] if self._exchanges else []
        said = self._exchanges[-1].said if self._exchanges else ()
        return self.world.templates.parse(text, [*active, *said])

    def _answer(self, understood: list[DialogueAct]) -> Exchange:
        dialogue = self._dialogue
        dialogue.listen(understood)
        told = user_text(understood, dialogue.belief, self.world)
        shown = self._history if self._n_shown is None else self._history[len(self._history) - self._n_shown + 1 :]
        seed = None if self._seed is None else self._seed + len(self._history)
        reply = self._loaded.chat(told, shown, seed=seed)
        self._history += [told, reply]
        dialogue.say_text(reply, self._reader)
        return dialogue.exchanges[-1]


class ActAgent(TaskAgent):
    """A policy in a conversation with a person.

    What the person says is understood by the run's ``nlu``, or the world's templates, without semantic errors. Where
    the policy would say nothing, because no single act is more likely than not, it says the most likely one.
    """

    def __init__(self, agent: Agent, seed: int | None = None) -> None:
        assert isinstance(agent, TurnLevelAgent)
        self._agent = agent
        envs = agent.envs("test", n_envs=1)
        env = envs.envs[0].unwrapped if isinstance(envs, DummyVecEnv) else None
        if not isinstance(env, DialogueActEnv):
            raise ConfigError(f"env.id: {agent.config.env.id} has no dialogues, so there is nobody to chat with")
        self._env: DialogueActEnv = env
        agent.player(envs)  # an environment without a rule policy is an error now, not at the first reply
        super().__init__(agent.name, env.world, seed)

    @property
    def _exchanges(self) -> Sequence[Exchange]:
        return self._env.dialogue.exchanges

    def _begin(self, goal: Goal) -> None:
        self._env.begin(goal, (), [])

    def _understand(self, text: str) -> list[DialogueAct]:
        return self._env.understand(text)

    def _answer(self, understood: list[DialogueAct]) -> Exchange:
        return self._env.speak(self._action(self._env.listen(understood, understood)))[0]

    def _action(self, observation: Any) -> Any:
        policy: Any = self._agent.policy
        if policy is None:
            return self._env.rule_action()
        masks = {"action_masks": self._env.action_masks()} if self._agent.is_masked else {}
        deterministic = self._agent.config.train_evaluation.deterministic
        action = policy.predict(observation, deterministic=deterministic, **masks)[0]
        if isinstance(self._env.action_space, MultiBinary) and not action.any():
            # No single act is more likely than not.
            with torch.no_grad():
                tensor, _ = policy.obs_to_tensor(observation)
                probs = policy.get_distribution(tensor, **masks).distribution.probs[0]
            action[int(probs.argmax())] = 1
        return action


def task_agent(chosen: LoadedPolicy | Agent, name: str, seed: int | None) -> TaskAgent:
    """An agent in words or in acts."""
    return WordsAgent(chosen, name, seed) if isinstance(chosen, LoadedPolicy) else ActAgent(chosen, seed)


class TaskChat:
    """A dialogue with an agent for this person alone; after its end, the next one begins with a goal or a message.

    `turns` are what the person said, with the agent's reply. The goal is in words, and empty if there is none. The
    revision is another after each change, and in each chat.
    """

    def __init__(self, agent: TaskAgent) -> None:
        self.agent, self.goal, self.turns = agent, "", list[tuple[str, TaskReply]]()
        self.is_over, self.revision = False, secrets.randbelow(2**31)
        self._final: Outcome | None = None  # outcome of a dialogue that is over

    @property
    def score(self) -> str:
        """Whether the goal is reached, and what is missing; empty without a goal or a dialogue."""
        if (outcome := self._outcome) is None:
            return ""
        return "Success: the goal is reached." if outcome.success else f"Failure: {'; '.join(outcome.failures)}."

    def reset(self) -> None:
        self.agent.reset()
        self._begin("")

    def draw_goal(self) -> None:
        self._begin(self.agent.draw_goal())

    def say(self, text: str) -> TaskReply:
        """Say something to the agent; a goodbye ends the dialogue."""
        if len(text) > _MAX_CHARACTERS:
            raise ConfigError(f"a message can have at most {_MAX_CHARACTERS} characters, not {len(text)}; shorten it")
        if self.is_over:
            self.agent.reset()
        reply = self.agent.reply(text)
        if not reply.understood:
            domains = ", ".join(self.agent.domains)
            raise ConfigError(f"nothing was understood, so the agent did not answer; it knows: {domains}")
        if self.is_over:
            self._begin("")
        self.turns.append((text, reply))
        if any(act.intent == BYE for act in reply.understood):
            self._end()
        self.revision += 1
        return reply

    def end(self) -> None:
        if self.is_over or not self.turns or not self.score:
            raise ConfigError("there is no dialogue about a goal to score; begin one with a new goal (/goal)")
        self._end()
        self.revision += 1

    def record(self) -> Mapping[str, Any] | None:
        """The dialogue as a record for a file; ``None`` if nothing was said."""
        said = [
            {"role": role, "content": content}
            for text, reply in self.turns
            for role, content in (("user", text), ("assistant", reply.text))
        ]
        outcome = self._outcome
        scored = {} if outcome is None else {"goal_text": self.goal, "success": outcome.success}
        return {"messages": said, "model": self.agent.name, **scored} if said else None

    @property
    def _outcome(self) -> Outcome | None:
        return self._final if self.is_over else self.agent.outcome()

    def _end(self) -> None:
        self.is_over, self._final = True, self.agent.outcome()

    def _begin(self, goal: str) -> None:
        self.goal, self.turns, self.is_over = goal, [], False
        self.revision += 1


def in_words(acts: Sequence[DialogueAct]) -> str:
    return " ".join(map(str, acts)) or "none"


class TaskTerminalChat(LineChat):
    """A dialogue with an agent that speaks in dialogue acts, about a goal if the person asks for one."""

    commands = commands_of(Path(__file__))["task"]

    def __init__(self, agent: TaskAgent, read_line: ReadLine, write: Write) -> None:
        super().__init__(read_line, write)
        self._chat, self._shows_acts = TaskChat(agent), False

    def _greet(self) -> None:
        agent = self._chat.agent
        self._write(f"Chat with {agent.name} about: {', '.join(agent.domains)}.\n")
        self._write("Type /goal for a goal to reach, /help for commands, /quit or Ctrl-D to end.\n")

    def _reply(self, text: str) -> None:
        reply = self._chat.say(text)
        if self._shows_acts:
            self._write(f"  understood: {in_words(reply.understood)}\n")
        self._write(f"{speaker('agent')}{visible(reply.text) or NOTHING}\n")
        if self._shows_acts:
            self._write(f"  acts: {in_words(reply.acts)}\n")
        if self._chat.is_over:
            self._write_end()

    def _do_goal(self) -> None:
        self._chat.draw_goal()
        self._write(f"Goal: {self._chat.goal}\nSay goodbye, or /done, when you have everything.\n")

    def _do_done(self) -> None:
        self._chat.end()
        self._write_end()

    def _write_end(self) -> None:
        if self._chat.score:
            self._write(f"{self._chat.score}\n")
        self._write("A new dialogue begins.\n")

    def _do_acts(self) -> None:
        self._shows_acts = not self._shows_acts
        self._write(f"Dialogue acts are {'shown' if self._shows_acts else 'hidden'}.\n")

    def _do_reset(self) -> None:
        self._chat.reset()
        self._write("A new dialogue begins.\n")

    def _do_save(self, argument: str) -> None:
        self._append(argument, self._chat.record())


class TaskPage(Page[TaskChat]):
    """A web page for dialogues about goals. Each browser has an agent of its own, and begins with a goal."""

    mode = "task"
    hint = "You are the user. Say goodbye, or press Done, when you have everything."

    def __init__(self, begin: Callable[[], TaskAgent]) -> None:
        def begin_chat() -> TaskChat:
            chat = TaskChat(begin())
            chat.draw_goal()
            return chat

        agent = begin()
        self._about = f"Talk about: {', '.join(agent.domains)}."
        super().__init__([agent.name], self._about, begin_chat)

    def _add_settings(self) -> None:
        self._gradio.Markdown(
            "## Settings\nThe agent understands sentences, and dialogue acts as they are written beneath a message."
        )
        self.options = [self._gradio.Checkbox(True, label="Show dialogue acts", elem_id="acts")]

    def _add_below(self) -> list[Any]:
        text = self._add_message_box()
        with self._gradio.Row(elem_id="below"):
            self._done, self._new_goal, self._free_chat = map(self._button, ("Done", "New goal", "Free chat"))
        return [text, self._done]

    def _add_events(self) -> None:
        self._on_load()
        self._on(self._text.submit, "send", self._sent, self._text, written=self._text)
        self._on(self._done.click, "done", lambda visit: self._chat(visit).end())
        self._on(self._new_goal.click, "goal", lambda visit: self._chat(visit).draw_goal())
        self._on(self._free_chat.click, "reset", lambda visit: self._chat(visit).reset())
        self._on(self.options[0].input, "acts", lambda visit: None, needs_current=False)

    def _chat(self, visit: Visit) -> TaskChat:
        return self._sessions.open(visit.person)

    def _sent(self, visit: Visit, text: str) -> Iterator[Updates]:
        yield self._shown(visit, asked=text)
        self._chat(visit).say(text)

    def _shown(self, visit: Visit, problem: str = "", note: str = "", asked: str | None = None) -> Updates:
        """Updates of all components; a message that was `asked` is the one that the agent is replying to."""
        chat, update = self._chat(visit), self._gradio.update
        (shows_acts,) = visit.options
        bubbles = _bubbles(chat, shows_acts)
        if asked is not None:
            bubbles += [Bubble("user", asked), Bubble("assistant", "", is_typed=True)]
        is_open, written = not chat.is_over, {} if asked is None else {"value": ""}
        placeholder = "Type a message" if is_open else "The dialogue is over."
        return {
            self._revision: chat.revision,
            self._help: help_html(self.hint if chat.goal else f"You are the user. {self._about}", goal=chat.goal),
            self._status: status_html(problem, "" if is_open else _NEXT),
            self._text: update(interactive=is_open, submit_btn=is_open, placeholder=placeholder, **written),
            self._done: update(interactive=bool(chat.score) and is_open, visible=bool(chat.goal)),
            **self._columns[0].shown(bubbles, can_judge=False),
        }


def _bubbles(chat: TaskChat, shows_acts: bool) -> list[Bubble]:
    found = []
    for text, reply in chat.turns:
        understood, acts = f"understood: {in_words(reply.understood)}", f"acts: {in_words(reply.acts)}"
        below, below_reply = (note_html(understood), note_html(acts)) if shows_acts else ("", "")
        found += [Bubble("user", text, below), Bubble("assistant", reply.text or NOTHING, below_reply)]
    if chat.is_over:
        found[-1] = replace(found[-1], html=found[-1].html + note_html(chat.score, is_strong=True))
    return found
