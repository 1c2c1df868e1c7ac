"""How dialogues become prompts."""

from __future__ import annotations

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Dialogue, Turn
from rl4dialog.data.dialogue_format import DialogueFormat, chat_messages, dialogue_samples


def make_dialogue(id: str, *texts: str) -> Dialogue:
    return Dialogue(id, tuple(Turn(text, i % 2, act=i % 4 + 1, emotion=i % 7) for i, text in enumerate(texts)))


def test_eou_prompt_is_that_of_rl4lms() -> None:
    samples = dialogue_samples([make_dialogue("d", "a b", "c", "d ?", "e")], DialogueFormat("eou", 2))
    assert [sample.prompt_or_input_text for sample in samples] == ["a b<EOU>c <EOU>", "c<EOU>d ? <EOU>"]
    assert [sample.references for sample in samples] == [["d ?"], ["e"]]


def test_meta_data_holds_labels_of_the_reply_and_the_history() -> None:
    samples = dialogue_samples([make_dialogue("d", "a", "b", "c", "d")], DialogueFormat("eou", 2))
    assert samples[1].meta_data == {"emotion": [3], "intent": [4], "history": ["b", "c"]}


def test_unlabelled_turns_leave_labels_out() -> None:
    dialogue = Dialogue("d", (Turn("a", 0), Turn("b", 1)))
    assert dialogue_samples([dialogue], DialogueFormat("eou", 1))[0].meta_data == {"history": ["a"]}


def test_ids_count_all_utterances_of_the_split() -> None:
    dialogues = [make_dialogue("x", "a", "b", "c"), make_dialogue("y", "a"), make_dialogue("z", "a", "b", "c")]
    samples = dialogue_samples(dialogues, DialogueFormat("eou", 1))
    assert [sample.id for sample in samples] == [1, 2, 5, 6]


def test_only_utterances_with_enough_context_are_replies() -> None:
    dialogue = make_dialogue("d", "a", "b", "c")
    assert dialogue_samples([dialogue], DialogueFormat("eou", 3)) == []
    assert len(dialogue_samples([dialogue], DialogueFormat("eou", 1))) == 2


def test_sample_of_a_whole_dialogue_starts_at_its_first_reply() -> None:
    dialogues = [make_dialogue("x", "a", "b", "c", "d", "e"), make_dialogue("y", "a"), make_dialogue("z", "f", "g")]
    samples = dialogue_samples(dialogues, DialogueFormat("eou", 3), "dialogues")
    assert [(sample.id, sample.prompt_or_input_text, sample.references) for sample in samples] == [
        (1, "a <EOU>", ["b"]),
        (7, "f <EOU>", ["g"]),
    ]
    labels = {"emotion": [1], "intent": [2]}
    later = [{"emotion": [i % 7], "intent": [i % 4 + 1]} for i in (2, 3, 4)]
    first, second = (sample.meta_data for sample in samples)
    assert first == {**labels, "history": ["a"], "continuation": ["c", "d", "e"], "continuation_labels": later}
    assert second == {**labels, "history": ["f"], "continuation": [], "continuation_labels": []}


def test_chat_roles_alternate_back_from_the_user() -> None:
    messages = chat_messages(["a", "b", "c"], system="be kind")
    assert messages == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert [message["role"] for message in chat_messages(["b", "c"])] == ["assistant", "user"]


def test_chat_template_prompt_is_what_the_renderer_makes() -> None:
    def render(messages: list[dict[str, str]]) -> str:
        return "".join(f"[{message['role'][0]}]{message['content']}" for message in messages) + "[a]"

    chat = DialogueFormat("chat_template", 3, render)
    samples = dialogue_samples([make_dialogue("d", "a", "b", "c", "d")], chat)
    assert samples[0].prompt_or_input_text == "[u]a[a]b[u]c[a]"
    assert samples[0].references == ["d"]


def test_end_of_turn_is_the_marker_in_eou_only() -> None:
    assert DialogueFormat("eou", 1).end_of_turn == "<EOU>"
    assert DialogueFormat("chat_template", 1, str).end_of_turn is None


def test_eou_ignores_a_renderer() -> None:
    assert DialogueFormat("eou", 1, lambda messages: "chat").prompt(["a"]) == "a <EOU>"


def test_chat_template_without_renderer_is_an_error() -> None:
    with pytest.raises(DataError, match=r"'chat_template' needs a tokenizer with a chat template; .*, or format 'eou'"):
        DialogueFormat("chat_template", 3)


def test_no_context_size_means_all_utterances() -> None:
    samples = dialogue_samples([make_dialogue("d", "a", "b", "c")], DialogueFormat("eou", None))
    assert [sample.prompt_or_input_text for sample in samples] == ["a <EOU>", "a<EOU>b <EOU>"]
