"""The web page on which people judge a queue of pairs. `pair_judging` implements the actions.

The page does not name the models, so that it does not influence the choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl4dialog.core.errors import RL4DialogError
from rl4dialog.core.feedback_queue import QueuedPair
from rl4dialog.data.dialogue_format import chat_messages
from rl4dialog.serving.page import load_gradio
from rl4dialog.serving.page_html import conversation_html, escaped, status_html
from rl4dialog.serving.pair_judging import PairJudging

_IN_TURN = {"concurrency_id": "feedback", "concurrency_limit": 1}
_Updates = dict[Any, Any]


class QueuePage:
    """A web page for choices between two replies.

    Args:
        judging: Implements the actions.

    Attributes:
        blocks: The Gradio app.

    Raises:
        ConfigError: If Gradio is not installed.
    """

    def __init__(self, judging: PairJudging) -> None:
        self._judging, self._gradio = judging, load_gradio()
        with self._gradio.Blocks(title="rl4dialog", analytics_enabled=False, fill_width=True) as self.blocks:
            self._add_components()
            self._add_events()

    def _add_components(self) -> None:
        gradio = self._gradio
        self._id = gradio.State("")
        self._progress = gradio.HTML("", elem_id="progress")
        self._columns, self._corrections, self._correct = [], [], []
        with gradio.Row():
            for i in range(2):
                with gradio.Column(min_width=300):
                    self._columns.append(gradio.HTML("", elem_id=f"reply-{i}"))
                    with gradio.Row(equal_height=True):
                        box = {"show_label": False, "container": False, "lines": 1, "scale": 4, "min_width": 150}
                        self._corrections.append(
                            gradio.Textbox(placeholder="A better reply", elem_id=f"correction-{i}", **box)
                        )
                        self._correct.append(gradio.Button("Correct", size="sm", min_width=80, elem_id=f"correct-{i}"))
        with gradio.Row(elem_id="choice"):
            self._choices = {
                gradio.Button(label, variant=variant, min_width=80, elem_id=f"choose-{name}"): (name, index)
                for label, variant, name, index in (
                    ("1 is better", "primary", "0", 0),
                    ("No difference", "secondary", "none", None),
                    ("2 is better", "primary", "1", 1),
                )
            }
        self._status = gradio.HTML("", elem_id="status")

    def _add_events(self) -> None:
        outputs = [
            *(self._id, self._progress, self._status, *self._columns, *self._corrections, *self._correct),
            *self._choices,
        ]
        self.blocks.load(self._shown, None, outputs, api_name="open", show_progress="hidden")

        def on(events: list[Any], name: str, action: Callable[..., str], *inputs: Any) -> None:
            def clicked(id: str, *values: Any) -> _Updates:
                try:
                    return self._shown(note=action(id, *values))
                except RL4DialogError as error:
                    return self._shown(str(error))

            self._gradio.on(
                events, clicked, [self._id, *inputs], outputs, api_name=name, show_progress="hidden", **_IN_TURN
            )

        for button, (name, index) in self._choices.items():
            on([button.click], f"choose_{name}", lambda id, index=index: self._judging.choose(id, index))
        for i, (button, text) in enumerate(zip(self._correct, self._corrections, strict=True)):
            on(
                [button.click, text.submit],
                f"correct_{i}",
                lambda id, text, i=i: self._judging.correct(id, i, text),
                text,
            )

    def _shown(self, problem: str = "", note: str = "") -> _Updates:
        """Updates of all components."""
        pair, judging, update = self._judging.current, self._judging, self._gradio.update
        done = "" if pair is not None else " All pairs are judged; you can close this page."
        return {
            self._id: "" if pair is None else pair.id,
            self._progress: f"<p>{escaped(f'{judging.n_done} of {judging.n_pairs} pairs.{done}')}</p>",
            self._status: status_html(problem, note),
            **{column: "" if pair is None else _column(pair, i) for i, column in enumerate(self._columns)},
            **{text: update(value="", interactive=pair is not None) for text in self._corrections},
            **{button: update(interactive=pair is not None) for button in (*self._correct, *self._choices)},
        }


def _column(pair: QueuedPair, index: int) -> str:
    """The conversation with one of the replies."""
    persona = f'<p class="origin">{escaped(f"Persona: {pair.persona}")}</p>' if pair.persona else ""
    reply = {"role": "assistant", "content": pair.replies[index].text}
    return persona + conversation_html(str(index + 1), [*chat_messages(pair.turns), reply])
