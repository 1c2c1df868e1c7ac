import pytest
from tiny import make_tokenizer
from tokenizers.processors import TemplateProcessing

from rl4dialog.core.errors import ModelError
from rl4dialog.core.types import Frame, Prompt, PromptTurn
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.prompts import History, encode_prompt, encode_reply, encoder_of
from rl4dialog.text.tokenizer import CHARACTERS, UNKNOWN_TOKEN, WORDS, build_tokenizer, tokenizer_hash

LETTERS = ["new word <EOU>", *"abcdefghijklmnopqrstuvwxyz"]
CORPUS = ["do you like the blue bike?<EOU>yes, i like it <EOU>", "i like the red one too"] * 20


def test_builtin_tokenizer_keeps_the_marker_as_one_token_whatever_stands_before_it():
    tokenizer = build_tokenizer("builtin/tiny-gpt2", vocab_size=300, corpus=CORPUS, turn_marker="<EOU>")
    marker = tokenizer.convert_tokens_to_ids("<EOU>")
    assert tokenizer("a <EOU>")["input_ids"] == tokenizer("a<EOU>")["input_ids"]
    assert tokenizer("a<EOU>b")["input_ids"].count(marker) == 1
    assert len(tokenizer) <= 300
    assert tokenizer.decode(tokenizer("crème brûlée 🙂")["input_ids"]) == "crème brûlée 🙂"
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_tokenizer_without_texts_or_folder_is_an_error():
    with pytest.raises(ModelError, match="there are none"):
        build_tokenizer("builtin/tiny-gpt2", corpus=[])
    with pytest.raises(ModelError, match=r"no/such/folder.*builtin/tiny-gpt2"):
        build_tokenizer("no/such/folder")


def test_tokenizer_loads_from_a_folder_and_pads_with_eos_or_refuses(tmp_path):
    make_tokenizer().save_pretrained(tmp_path)
    tokenizer = build_tokenizer(str(tmp_path), max_length=17)
    assert tokenizer.model_max_length == 17
    assert tokenizer.padding_side == "left"
    tokenizer = make_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    assert build_tokenizer(str(tmp_path)).pad_token == "<eos>"
    with pytest.raises(ModelError, match="pad_token_as_eos_token: true"):
        build_tokenizer(str(tmp_path), pad_token_as_eos_token=False)


@pytest.mark.parametrize(
    ("max_length", "expected"),
    [
        (None, "w0 w1 <EOU> w2 w3 <EOU> w4 w5 <EOU>"),
        (9, "w0 w1 <EOU> w2 w3 <EOU> w4 w5 <EOU>"),
        (8, "w2 w3 <EOU> w4 w5 <EOU>"),
        (5, "w4 w5 <EOU>"),
        (2, "w5 <EOU>"),
    ],
)
def test_whole_turns_are_dropped_where_their_end_is_known(max_length, expected):
    tokenizer = make_tokenizer(marker="<EOU>")
    ids = encode_prompt(tokenizer, "w0 w1 <EOU> w2 w3 <EOU> w4 w5 <EOU>", max_length, end_of_turn="<EOU>")
    assert tokenizer.decode(ids) == expected


def test_begin_of_sequence_is_not_doubled_behind_a_chat_template(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.bos_token = "<eos>"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 0)])
    assert encode_prompt(tokenizer, "w0 w1", 8) == [0, 3, 4]
    assert encode_prompt(tokenizer, "<eos> w0 w1", 8) == [0, 3, 4]


def test_hash_is_that_of_the_vocabulary_and_not_of_its_use(tmp_path):
    tokenizer = make_tokenizer()
    found = tokenizer_hash(tokenizer)
    assert len(found) == 16 and found == tokenizer_hash(make_tokenizer())
    tokenizer(["w1", "w2 w3"], padding=True, truncation=True, max_length=1)
    assert "padding" in tokenizer.backend_tokenizer.to_str() and tokenizer_hash(tokenizer) == found
    tokenizer.save_pretrained(tmp_path)
    assert tokenizer_hash(build_tokenizer(str(tmp_path))) == found
    tokenizer.add_tokens(["<new>"])
    assert tokenizer_hash(tokenizer) != found != tokenizer_hash(make_tokenizer(marker="<EOU>"))


def test_tokenizer_without_a_rust_backend_has_the_hash_of_its_vocabulary():
    class Slow:
        def __init__(self, **vocab):
            self.get_vocab = lambda: vocab

    assert tokenizer_hash(Slow(a=0, b=1)) == tokenizer_hash(Slow(b=1, a=0)) != tokenizer_hash(Slow(a=1, b=0))


def characters(corpus=LETTERS, **args):
    return build_tokenizer(CHARACTERS, corpus=corpus, turn_marker="<EOU>", **args)


UNUSUAL = ["", " a  b ", "a <EOU>", "a<EOU>b <EOU> <EOU>\n", "\n\t\r\n", "crème e\u0301🙂", "<EOU", "<|endoftext|> a"]


@pytest.mark.parametrize("text", UNUSUAL)
def test_characters_are_decoded_as_they_were(text):
    tokenizer = characters([*LETTERS, text])
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert UNKNOWN_TOKEN not in tokenizer.convert_ids_to_tokens(ids)
    assert encoder_of(tokenizer).ids(text) == ids


def test_each_character_is_a_token():
    tokenizer = characters()
    assert tokenizer.convert_ids_to_tokens(tokenizer("a bc<EOU>")["input_ids"]) == ["a", " ", "b", "c", "<EOU>"]
    assert len(tokenizer) == 26 + 1 + 3 + 1  # letters; space; end, pad and unknown; marker
    assert len({tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}) == 3
    assert len(build_tokenizer(CHARACTERS, corpus=["ab"])) == 2 + 3


def test_other_characters_are_unknown_one_by_one_and_left_out_of_replies():
    tokenizer = characters()
    ids = tokenizer("aÄ?🙂b")["input_ids"]
    unknown = tokenizer.unk_token_id
    assert ids == [ids[0], unknown, unknown, unknown, ids[-1]]
    assert EndOfTurn(tokenizer, [tokenizer.eos_token_id], "<EOU>").reply_text(ids) == "ab"
    assert unknown not in encoder_of(tokenizer).special_ids


def test_conversation_in_characters_has_the_ids_of_its_text():
    tokenizer = characters()
    end = EndOfTurn(tokenizer, [tokenizer.eos_token_id], "<EOU>")
    frame = Frame.plain("<EOU>")
    history = History(tokenizer, Prompt([PromptTurn("new word", " <EOU>")]), None, frame=frame)
    text = "new word <EOU>"
    for said, heard in (("crane", "bbgyb"), ("slate", "ggbby"), ("a b", "")):
        ids = encode_reply(tokenizer, said, "<EOU>", prompt=history.prompt)
        assert end.is_end(ids) and not any(end.is_end(ids[:i]) for i in range(len(ids)))
        assert end.reply_text(ids) == said
        history.go_on(ids, said, heard, end)
        text += f"{said}<EOU>{heard} <EOU>"
        assert str(history.prompt) == text
        assert history.prompt_ids == tokenizer(text)["input_ids"]
        assert tokenizer.decode(history.prompt_ids) == text


def test_saved_characters_are_loaded_as_they_were(tmp_path):
    tokenizer = characters()
    tokenizer.save_pretrained(tmp_path)
    loaded = build_tokenizer(str(tmp_path))
    text = "new word <EOU>crane<EOU>bbgyb <EOU>"
    assert (
        loaded(text)["input_ids"] == tokenizer(text)["input_ids"] and loaded.decode(loaded(text)["input_ids"]) == text
    )
    assert loaded.unk_token == UNKNOWN_TOKEN and loaded.get_vocab() == tokenizer.get_vocab()


GAMES = ["new word <EOU>", "crane", "bbgyb <EOU>slate<EOU>ggbby"]


def words(corpus=GAMES, **args):
    return build_tokenizer(WORDS, corpus=corpus, turn_marker="<EOU>", **args)


def tokens_in_words(text, corpus=GAMES):
    tokenizer = words(corpus)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
    return tokens


def test_each_word_is_a_token_and_other_words_are_characters():
    assert tokens_in_words("new word <EOU>crane<EOU>bbgyb <EOU>") == [
        *("new", " ", "word", "<EOU>", "crane", "<EOU>", "bbgyb", "<EOU>")
    ]
    assert tokens_in_words("no crater") == ["n", "o", " ", *"crater"]
    assert tokens_in_words("crane?") == [*"crane", UNKNOWN_TOKEN]
    # One word does not depend on the others, as merges would.
    assert tokens_in_words("bat tab", ["bat tab at ba ab ta"]) == ["bat", " ", "tab"]


@pytest.mark.parametrize("text", ["", " a  b ", "crane\n\tslate", "<|endoftext|> a", "crème e\u0301🙂", "a<EOU>b"])
def test_words_are_decoded_as_they_were(text):
    tokenizer = words([*GAMES, text])
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert encoder_of(tokenizer).ids(text) == ids


def test_more_characters_or_words_than_vocab_size_are_an_error():
    corpus = [" ".join(f"w{i}" for i in range(300))]
    with pytest.raises(ModelError, match=r"needs 316 tokens for the 300 words and 12 characters .*is 300; raise it"):
        words(corpus, vocab_size=300)
    assert len(words(corpus, vocab_size=316)) == 316
    corpus = [chr(0x4E00 + i) for i in range(300)]
    with pytest.raises(ModelError, match=r"needs 304 tokens for the 300 characters .*vocab_size is 300; raise it"):
        characters(corpus, vocab_size=300)
    assert len(characters(corpus, vocab_size=304)) == 304


def test_units_have_their_own_cache():
    assert len(words(CORPUS)) > len(characters(CORPUS))
    assert len(words(CORPUS)) != len(build_tokenizer("builtin/tiny-gpt2", corpus=CORPUS, turn_marker="<EOU>"))
