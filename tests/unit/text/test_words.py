"""Sentences and words without downloaded data, words of a topic, and post-processing."""

from rl4dialog.catalog import PostProcessorRegistry
from rl4dialog.text.words import content_words, split_sentences, split_words


def test_sentences_and_words_are_found():
    assert split_sentences("I see. Do you? Yes!") == ["I see.", "Do you?", "Yes!"]
    assert split_sentences("😀 ok. Ünïcode.") == ["😀 ok.", "Ünïcode."]
    for text in ("Mr. Smith comes at 8 p.m. on time.", "no end"):
        assert split_sentences(text) == [text]
    assert split_sentences("") == split_sentences(" \n") == []
    assert split_words("Don't stop. Go on!") == ["Do", "n't", "stop", ".", "Go", "on", "!"]
    assert split_words("the boy's cat, 3.5 kg") == ["the", "boy", "'s", "cat", ",", "3.5", "kg"]
    assert split_words("") == [] and split_words("😀") == ["😀"]
    assert content_words("Do you LIKE dogs, or the dog's bones?") == {"dog", "bone"}
    summary = PostProcessorRegistry.get("three_sentence_summary")
    assert summary("Mr. Fox ran. It rained! Who won? Nobody.") == "Mr. Fox ran.\nIt rained!\nWho won?"
    assert (summary("One. Two"), summary(""), summary(" \n")) == ("One.\nTwo", "", "")
