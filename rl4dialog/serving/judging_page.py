"""The web page on which people judge replies: a queue, or those of a model that they teach. `judging` has the actions.

The page does not name the models, so that it does not influence the choice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rl4dialog.core.errors import RL4DialogError
from rl4dialog.core.feedback_queue import QueuedReplies
from rl4dialog.data.dialogue_format import chat_messages
from rl4dialog.serving.judging import Judging
from rl4dialog.serving.page import load_gradio
from rl4dialog.serving.page_html import conversation_html, escaped, status_html
from rl4dialog.serving.sessions import browser_key

_IN_TURN = {"concurrency_id": "feedback", "concurrency_limit": 1}
_Updates = dict[Any, Any]

_logger = logging.getLogger(__name__)


class JudgingPage:
    """A web page for ratings, corrections, and choices between two replies. Each browser has something else to judge.

    Args:
        judging: Implements the actions.

    Attributes:
        blocks: The Gradio app.

    Raises:
        ConfigError: If Gradio is not installed.
    """

    def __init__(self, judging: Judging[Any]) -> None:
        self._judging, self._gradio = judging, load_gradio()
        with self._gradio.Blocks(title="rl4dialog", analytics_enabled=False, fill_width=True) as self.blocks:
            self._add_components()
            self._add_events()

    def _add_components(self) -> None:
        gradio, goals = self._gradio, list(self._judging.goals)
        self._browser = gradio.BrowserState(None, storage_key="rl4dialog-judging", secret="rl4dialog")
        self._id = gradio.State("")
        self._progress = gradio.HTML("", elem_id="progress")
        with gradio.Row(visible=bool(goals), equal_height=True, elem_id="goals"):
            self._goal = gradio.Dropdown(
                goals, value=None, allow_custom_value=True, label="Goal of the reply", scale=4, min_width=150,
                elem_id="goal",
            )  # fmt: skip
            self._set_goal = gradio.Button("Reply to this goal", size="sm", min_width=120, elem_id="set-goal")
        with gradio.Row():
            self._columns = [_ReplyColumn(gradio, i) for i in range(2)]
        with gradio.Row(elem_id="choice"):
            first, self._skip, second = (
                gradio.Button(label, variant=variant, min_width=80, elem_id=f"choose-{name}")
                for label, variant, name in (
                    ("1 is better", "primary", "0"),
                    ("No difference", "secondary", "none"),
                    ("2 is better", "primary", "1"),
                )
            )
            self._choices = [first, second]
        self._status = gradio.HTML("", elem_id="status")

    def _add_events(self) -> None:
        judging = self._judging
        parts = [part for column in self._columns for part in column.parts]
        shown = [self._progress, self._status, *parts, self._goal]
        outputs = [self._id, *shown, self._set_goal, self._skip, *self._choices]
        self.blocks.load(
            self._opened,
            [self._browser],
            [self._browser, *outputs],
            api_name="open",
            show_progress="hidden",
            **_IN_TURN,
        )

        def on(events: list[Any], name: str, action: Callable[..., str], *inputs: Any) -> None:
            def clicked(key: object, id: str, *values: Any) -> _Updates:
                return self._clicked(browser_key(key), id, lambda person: action(person, id, *values))

            self._gradio.on(
                events,
                clicked,
                [self._browser, self._id, *inputs],
                outputs,
                api_name=name,
                show_progress="minimal",
                show_progress_on=[self._progress],
                **_IN_TURN,
            )

        on([self._skip.click], "choose_none", judging.skip)
        on([self._set_goal.click], "goal", judging.set_goal, self._goal)
        for i, (choice, column) in enumerate(zip(self._choices, self._columns, strict=True)):
            on([choice.click], f"choose_{i}", lambda person, id, i=i: judging.choose(person, id, i))
            on([column.up.click], f"rate_up_{i}", lambda person, id, i=i: judging.rate(person, id, i, 1))
            on([column.down.click], f"rate_down_{i}", lambda person, id, i=i: judging.rate(person, id, i, -1))
            on(
                [column.correct.click, column.correction.submit],
                f"correct_{i}",
                lambda person, id, text, i=i: judging.correct(person, id, i, text),
                column.correction,
            )

    def _opened(self, key: object) -> _Updates:
        person = browser_key(key)
        return {self._browser: person, **self._shown(person)}

    def _clicked(self, person: str, id: str, action: Callable[[str], str]) -> _Updates:
        try:
            return self._shown(person, note=action(person))
        except Exception as error:
            return self._shown(person, self._problem(error), before=id)

    def _shown(self, person: str, problem: str = "", note: str = "", before: str = "") -> _Updates:
        """Updates of all components.

        Args:
            person: The browser.
            problem: Why the last action failed; what the person typed about the replies with the id ``before`` stays.
            note: What came of it otherwise.
            before: See there.
        """
        judging, update, replies = self._judging, self._gradio.update, None
        try:
            replies = judging.current(person)
        except Exception as error:
            problem = self._problem(error)
        n = 0 if replies is None else len(replies.replies)
        done = " You can close this page." if judging.is_done else f" {judging.hint}"
        updates = {
            self._id: "" if replies is None else replies.id,
            self._progress: f"<p>{escaped(judging.progress + done)}</p>",
            self._status: status_html(problem, note),
            self._goal: update(value=judging.goal(person), interactive=n > 0),
            self._set_goal: update(interactive=n > 0),
            self._skip: update(value="No difference" if n == 2 else "Next", interactive=not judging.is_done),
            **{choice: update(visible=n == 2) for choice in self._choices},
        }
        for column in self._columns:
            updates |= column.shown(replies, keeps_text=replies is not None and replies.id == before)
        return updates

    def _problem(self, error: Exception) -> str:
        """What the person reads. The page must stay usable after any failure of a model, such as too little memory."""
        if not isinstance(error, RL4DialogError):
            _logger.error("a judgement or a reply failed", exc_info=error)
        return str(error) or type(error).__name__


class _ReplyColumn:
    """The components of one reply."""

    def __init__(self, gradio: ModuleType, index: int) -> None:
        self._gradio, self._index = gradio, index
        with gradio.Column(min_width=300) as self.column:
            self.conversation = gradio.HTML("", elem_id=f"reply-{index}")
            with gradio.Row():
                self.up = gradio.Button("Rate up", size="sm", min_width=80, elem_id=f"up-{index}")
                self.down = gradio.Button("Rate down", size="sm", min_width=80, elem_id=f"down-{index}")
            with gradio.Row(equal_height=True) as self.correct_row:
                self.correction = gradio.Textbox(
                    show_label=False, container=False, placeholder="A better reply", lines=1,
                    scale=4, min_width=150, elem_id=f"correction-{index}",
                )  # fmt: skip
                self.correct = gradio.Button("Correct", size="sm", min_width=80, elem_id=f"correct-{index}")
        buttons = [self.up, self.down, self.correct]
        self.parts = [self.column, self.conversation, *buttons, self.correct_row, self.correction]

    def shown(self, replies: QueuedReplies | None, keeps_text: bool) -> _Updates:
        """Updates that show a conversation with one of the replies."""
        update, i = self._gradio.update, self._index
        n = 0 if replies is None else len(replies.replies)
        return {
            self.column: update(visible=i < max(n, 1)),
            self.conversation: _conversation(replies, i) if replies is not None and i < n else "",
            self.correct_row: update(visible=replies is None or not replies.is_conversation),
            self.correction: update(interactive=n > 0, **({} if keeps_text else {"value": ""})),
            **{button: update(interactive=n > 0) for button in (self.up, self.down, self.correct)},
        }


def _conversation(replies: QueuedReplies, index: int) -> str:
    """The conversation with one of the replies."""
    persona = f'<p class="origin">{escaped(f"Persona: {replies.persona}")}</p>' if replies.persona else ""
    shown = [*chat_messages(replies.turns), {"role": "assistant", "content": replies.replies[index].text}]
    if replies.answer is not None:
        shown.append({"role": "user", "content": replies.answer})
    name = f"Reply {index + 1}" if replies.is_pair else "Conversation" if replies.is_conversation else "Reply"
    return persona + conversation_html(name, shown)
