"""The page on which people judge: a queue of replies, or those of a model that they teach. `judging` has the actions.

The page does not name the models, so that it does not influence the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.feedback_queue import QueuedReplies
from rl4dialog.data.dialogue_format import chat_messages
from rl4dialog.serving.judging import Judging, Standing
from rl4dialog.serving.page_frame import Bubble, BubbleEvent, Page, Updates, problem_of
from rl4dialog.serving.page_html import help_html, note_html, status_html
from rl4dialog.serving.sessions import browser_key


class JudgingPage(Page):
    """A web page for ratings, corrections, and choices between two replies. Each browser has something else to judge.

    Args:
        judging: Implements the actions.
    """

    def __init__(self, judging: Judging[Any]) -> None:
        self._judging = judging
        super().__init__("rl4dialog-judging", ["Reply 1", "Reply 2"], "There is nothing left to judge.", "judging")

    # -- components ---------------------------------------------------------------------------------------------------

    @property
    def _hint(self) -> str:
        return self._judging.hint

    def _add_settings(self) -> None:
        goals = list(self._judging.goals)
        self._gradio.Markdown(
            f"## Judging\nEach judgement is appended to `{self._judging.feedback}` at once.\n\n{self._judging.advice}"
        )
        with self._gradio.Group(visible=bool(goals), elem_id="goals"):
            self._goal = self._gradio.Dropdown(
                goals, value=None, allow_custom_value=True, label="Goal of the reply", elem_id="goal"
            )
            self._set_goal = self._gradio.Button("Reply to this goal", elem_id="set-goal")

    def _add_below(self) -> None:
        self._id = self._gradio.State("")
        with self._gradio.Row(elem_id="below"):
            self._back = self._gradio.Button("Back", min_width=80, elem_id="back")
            self._skip = self._gradio.Button("Next", min_width=80, elem_id="skip")

    def _add_events(self) -> None:
        judging = self._judging
        parts = [part for column in self._columns for part in column.parts]
        outputs = [self._id, self._help, self._status, self._goal, self._set_goal, self._skip, self._back, *parts]
        self._on(self.blocks.load, "open", self._opened, [self._browser], [self._browser, *outputs])

        seen = [self._browser, self._id]

        def on(listen: Callable[..., Any], name: str, action: Callable[..., str], *inputs: Any) -> None:
            def clicked(key: object, id: str, *values: Any) -> Iterator[Updates]:
                person = browser_key(key)
                yield from self._changed(person, lambda: action(person, id, *values))

            self._on(listen, name, clicked, [*seen, *inputs], outputs)

        on(self._skip.click, "skip", judging.skip)
        on(self._back.click, "back", judging.go_back)
        on(self._set_goal.click, "goal", judging.set_goal, self._goal)
        for i, column in enumerate(self._columns):
            bubble = column.chat
            self._on_bubble(bubble.option_select, f"choose_{i}", self._judged(i, judging.choose), seen, outputs)
            rate, correct = self._judged(i, judging.rate, "rating"), self._judged(i, judging.correct, "value")
            self._on_bubble(bubble.like, f"rate_{i}", rate, seen, outputs)
            self._on_bubble(bubble.edit, f"correct_{i}", correct, seen, outputs)

    # -- events -------------------------------------------------------------------------------------------------------

    def _opened(self, key: object) -> Updates:
        person = browser_key(key)
        return {self._browser: person, **self._shown(person)}

    def _judged(self, index: int, action: Callable[..., str], verdict: str = "") -> Callable[..., Iterator[Updates]]:
        """A handler of a click on the bubble of a reply."""

        def clicked(event: BubbleEvent, key: object, id: str) -> Iterator[Updates]:
            person = browser_key(key)
            verdicts = [getattr(event, verdict)] if verdict else []

            def act() -> str:
                shown = self._judging.current(person)
                if verdict and shown and not shown.is_conversation and event.index != len(shown.turns):
                    raise ConfigError("only the last reply can be judged")
                return action(person, id, index, *verdicts)

            yield from self._changed(person, act)

        return clicked

    def _changed(self, person: str, action: Callable[[], str]) -> Iterator[Updates]:
        try:
            note = action()
        except Exception as error:
            yield from self._again(self._shown(person, problem_of(error)))
            return
        yield self._shown(person, note=note)

    # -- what is shown ------------------------------------------------------------------------------------------------

    def _shown(self, person: str, problem: str = "", note: str = "") -> Updates:
        """Updates of all components.

        Args:
            person: The browser.
            problem: Why the last action failed.
            note: What came of it otherwise.
        """
        judging, update, replies = self._judging, self._gradio.update, None
        try:
            replies = judging.current(person)
        except Exception as error:
            problem = problem_of(error)
        n = 0 if replies is None else len(replies.replies)
        is_whole = replies is not None and replies.is_conversation
        hint = "The thumbs rate the whole conversation." if is_whole else judging.hint
        hint = "You can close this page." if judging.is_done else hint
        persona = "" if replies is None or not replies.persona else f"Persona: {replies.persona}"
        updates = {
            self._id: "" if replies is None else replies.id,
            self._help: help_html(f"{judging.progress} {hint}", persona),
            self._status: status_html(problem, note),
            self._goal: update(value=judging.goal(person), interactive=n > 0),
            self._set_goal: update(interactive=n > 0),
            self._skip: update(value="No difference" if n == 2 else "Next", interactive=not judging.is_done),
            self._back: update(visible=judging.can_go_back(person)),
        }
        standings = [] if replies is None else judging.standing(replies)
        for i, column in enumerate(self._columns):
            bubbles = [] if replies is None or i >= n else self._bubbles(replies, i, standings[i])
            options = {"better": _choice(standings[i])} if n == 2 else {}
            label = f"Reply {i + 1}" if n == 2 else "Conversation" if is_whole else "Reply"
            updates |= column.shown(bubbles, options, can_correct=not is_whole, is_visible=i < max(n, 1), label=label)
        return updates

    def _bubbles(self, replies: QueuedReplies, index: int, standing: Standing) -> list[Bubble]:
        """The conversation with one of the replies."""
        reply = replies.replies[index].text
        said = [Bubble(message["role"], message["content"]) for message in chat_messages(replies.turns)]
        below = "" if standing.correction is None else note_html(f"your correction of the reply: {reply}")
        rating = standing.rating if standing.correction is None else None
        answer = [] if replies.answer is None else [Bubble("user", replies.answer)]
        return [*said, Bubble("assistant", standing.correction or reply, below, rating), *answer]


def _choice(standing: Standing) -> str:
    """What chooses a reply: where its bubble shows a correction, the choice is still that of the model's text."""
    return "This reply is better" if standing.correction is None else "The original reply is better"
