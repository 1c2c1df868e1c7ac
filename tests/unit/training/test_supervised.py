"""Supervised fine-tuning, and its loss beside RL."""

import copy
import random
import re
from functools import partial

import numpy as np
import pytest
import torch
from conversations import built
from runs import make_config
from tiny import make_env, make_gpt2, make_policy, make_t5, make_tokenizer, next_token
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch.nn import functional
from transformers import PreTrainedTokenizerFast
from two_processes import in_two_processes

from rl4dialog.core.config import parse_config
from rl4dialog.core.config_blocks import WarmStartConfig
from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.core.types import Dialogue, Prompt, PromptTurn, Sample, Turn
from rl4dialog.data.dialogue_format import dialogue_samples
from rl4dialog.data.pool import Data, TextGenPool
from rl4dialog.envs.conversation import ConversationRules
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.partners.scripted import ReplayPartner
from rl4dialog.policies.saving import weights_hash
from rl4dialog.training.building.language_model import build_warm_start_examples
from rl4dialog.training.building.texts import Texts, run_lengths
from rl4dialog.training.supervised import (
    IGNORED_LABEL,
    PATIENCE,
    ExampleSets,
    PaddingCollator,
    SupervisedLoss,
    Truncation,
    build_example_sets,
    build_examples,
    encode_reply,
    known_training_args,
    mean_loss,
    memorised,
    train_supervised,
    warm_start,
)

MARKER = "<EOU>"


def make_marker_tokenizer():
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken(MARKER, lstrip=True, normalized=False)])
    return tokenizer


def make_byte_tokenizer():
    """Every character is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def build(samples, tokenizer, **overrides):
    arguments = {"end_of_turn": None, "max_prompt_length": 6, "max_reply_length": 5, **overrides}
    return build_examples(samples, tokenizer, **arguments)[0]


def words(tokenizer, ids):
    return tokenizer.convert_ids_to_tokens(ids)


@pytest.mark.parametrize(
    ("prompt", "reply", "limits", "read", "learned"),
    [
        ("w1 w2", "w3 w4", {}, "w1 w2", "w3 w4 <eos>"),
        ("w1 <EOU>", "w3", {"end_of_turn": MARKER}, "w1 <EOU>", "w3 <EOU>"),
        ("w1 w2 w3 w4", "w5", {"max_prompt_length": 2}, "w3 w4", "w5 <eos>"),
        ("w1 w2 w3", "w5", {"max_prompt_length": 2, "prompt_truncation_side": "right"}, "w1 w2", "w5 <eos>"),
        ("w1", "w0 w1 w2 w3", {"max_reply_length": 5}, "w1", "w0 w1 w2 w3 <eos>"),
        ("w1", "w0 w1 w2 w3 w4", {"max_reply_length": 5}, "w1", "w0 w1 w2 w3 w4"),
        ("w1", "w0 w1 w2 w3 w4 w5", {"max_reply_length": 5}, "w1", "w0 w1 w2 w3 w4"),
        ("w1 w2 w3 w4", "w5 w6", {"max_length": 3, "in_encoder": True}, "w2 w3 w4", "w5 w6 <eos>"),
    ],
)
def test_labels_are_the_reply_and_its_end(prompt, reply, limits, read, learned):
    tokenizer = make_marker_tokenizer()
    (example,) = build([Sample(0, prompt, [reply])], tokenizer, **limits)
    ids, labels = example["input_ids"], example["labels"]
    n = len(read.split())
    if not limits.get("in_encoder"):
        assert labels[:n] == [IGNORED_LABEL] * n and ids[n:] == labels[n:]
        labels = labels[n:]
    assert (words(tokenizer, ids[:n]), words(tokenizer, labels)) == (read.split(), learned.split())


@pytest.mark.parametrize(
    ("references", "limits", "error", "message"),
    [
        (["w2 w3"], {"max_length": 2}, DataError, r"each of the 1 references has more than the 2 tokens.*max_length"),
        (["w2"], {"end_of_turn": MARKER}, ModelError, "cannot write '<EOU>'"),
        ([], {}, DataError, "no sample of the datapool has a reference that is not empty"),
        (["", " "], {}, DataError, "no sample of the datapool has a reference that is not empty"),
    ],
)
def test_what_cannot_be_learned_is_an_error(references, limits, error, message):
    with pytest.raises(error, match=message):
        build([Sample(0, "w1", references)], make_tokenizer(), **limits)


NO_LIMITS = {"max_prompt_length": None, "max_reply_length": None}


def test_prompt_gives_way_to_the_reference_its_oldest_turns_first():
    tokenizer = make_marker_tokenizer()
    sample = Sample(7, "w1 w2 <EOU> w3 w4 <EOU>", ["w5", "w5 w6", "w5 w6 w7 w8 w9", " ".join(["w5"] * 7)])
    limits = {**NO_LIMITS, "end_of_turn": MARKER, "max_length": 8, "whole_turns": True}
    examples, truncation = build_examples([sample], tokenizer, **limits)
    assert [words(tokenizer, example["input_ids"]) for example in examples] == [
        ["w1", "w2", MARKER, "w3", "w4", MARKER, "w5", MARKER],
        ["w3", "w4", MARKER, "w5", "w6", MARKER],
        ["w4", MARKER, "w5", "w6", "w7", "w8", "w9", MARKER],
    ]
    assert (truncation.n_prompts_cut, truncation.n_references_cut, truncation.left_out) == (2, 0, [7])
    assert str(truncation) == ("of 4 references: 2 with a cut prompt; 1 left out, too long by themselves (samples 7)")


def test_reply_that_leaves_no_room_for_a_turn_after_a_persona_is_left_out():
    tokenizer = make_tokenizer(marker="<EOU>")
    prompt = Prompt([PromptTurn("w1", " <EOU>")], ("", "w0 w0 w0", " <EOU>"))
    shape = {"end_of_turn": "<EOU>", "max_prompt_length": 9, "max_reply_length": None, "max_length": 10}
    samples = [Sample("fits", prompt, ["w2"]), Sample("long", prompt, ["w2 w3 w4 w5 w6"])]
    examples, truncation = build_examples(samples, tokenizer, **shape)
    assert (len(examples), truncation.left_out) == (1, ["long"])
    with pytest.raises(DataError, match="leaves no room for a turn in max_prompt_length: 4"):
        build_examples(samples, tokenizer, **{**shape, "max_prompt_length": 4})


@pytest.mark.parametrize("max_reply_length", range(1, 9))
def test_marker_of_several_tokens_is_learned_whole_or_not_at_all(max_reply_length):
    tokenizer = make_byte_tokenizer()
    (example,) = build([Sample(0, "a", ["xyz"])], tokenizer, end_of_turn=MARKER, max_reply_length=max_reply_length)
    expected = "xyz<EOU>" if max_reply_length >= 8 else "xyz"[:max_reply_length]
    assert tokenizer.decode(example["input_ids"][1:]) == expected


def test_empty_references_are_left_out_and_counted():
    samples = [Sample(0, "w1", ["", "w2"]), Sample(1, "w3", [" \n"])]
    examples, truncation = build_examples(samples, make_tokenizer(), end_of_turn=None, **NO_LIMITS)
    assert len(examples) == 1 and str(truncation) == "of 3 references: 2 left out, empty"
    limits = {**NO_LIMITS, "max_reply_length": 2}
    _, truncation = build_examples([Sample(0, "w1", ["w2 w3 w4", "w2"])], make_tokenizer(), end_of_turn=None, **limits)
    assert str(truncation) == "of 2 references: 1 without their end, which is then not learned"


@pytest.mark.parametrize("pad_is_eos", [False, True])
def test_batches_are_padded_right_with_a_mask_from_the_lengths(pad_is_eos):
    tokenizer = make_tokenizer(pad_is_eos)
    examples = build([Sample(0, "w1 w2", ["w3 w4"]), Sample(1, "w1", ["w2"])], tokenizer)
    batch = PaddingCollator(tokenizer.pad_token_id)(examples)
    eos, pad, ignored = tokenizer.eos_token_id, tokenizer.pad_token_id, IGNORED_LABEL
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch["input_ids"][1].tolist() == [*examples[1]["input_ids"], pad, pad]
    # The end of the reply is learned even where the same id pads.
    assert batch["labels"][1].tolist() == [ignored, examples[1]["input_ids"][1], eos, ignored, ignored]


LINES = ["I am fine , thanks .", "Do you like tea ?", "no , i do not .", "It's 7 o'clock", "the sea", "why ?", "oh"]
CASES = [
    ("eou", "byte_level"),
    ("chatml", "llama"),
    ("llama2", "unigram"),
    ("gemma", "byte_level"),
    ("zephyr", "llama"),
]

RULES = [
    {},
    {"max_partner_length": 4},
    {"end_when": {"partner": ["(the )?sea.*"]}},
    {"end_when": {"agent": ["^o"]}},
    {"max_partner_length": 6, "context_turns": 3, "end_when": {"partner": ["why"], "agent": ["sea$"]}},
]


def dialogues(form, n, length):
    generator = random.Random(0)
    told = [
        Dialogue(i, tuple(Turn(generator.choice(LINES), j % 2) for j in range(generator.randint(2, length))))
        for i in range(n)
    ]
    return dialogue_samples(told, form.dialogue, "dialogues")


def rolled_out(sample, form, **limits):
    """Prompts and replies of a rollout in which the agent says what the dataset says, until it is over."""
    texts = [sample.references[0], *sample.meta_data["continuation"][1::2]]
    env = make_env(
        form.tokenizer,
        end_of_turn=form.end,
        samples=[sample],
        reward_parts=[],
        partner=ReplayPartner(),
        max_turns=20,
        frame=form.dialogue.frame(),
        vocab_size=len(form.tokenizer),
        max_episode_length=40,
        **{"max_prompt_length": 400, **limits},
    )
    view, found = UtteranceView(env), []
    view.reset(options={"sample": sample})
    for i, text in enumerate(texts):
        prompt = env.state.prompt_ids
        reply = encode_reply(form.tokenizer, text, form.marker, 40, sample.prompt_or_input_text)
        found.append((prompt, reply))
        *_, over, _, info = view.step(np.array([*reply, *[-1] * (40 - len(reply))]))
        assert info["gen_text"] == text and (over or i + 1 < len(texts))
        if over:
            break
    return found


def rows_of(turns):
    """Ids and labels of turns, one row as long as prompts continue what was before them."""
    rows = []
    for prompt, reply in turns:
        goes_on = bool(rows) and prompt[: len(rows[-1][0])] == rows[-1][0]
        ids, labels = rows.pop() if goes_on else ([], [])
        rows.append(([*prompt, *reply], [*labels, *[IGNORED_LABEL] * (len(prompt) - len(ids)), *reply]))
    return rows


def learned_rows(sample, form, max_prompt_length=400, **rules):
    """Ids and labels of the examples of a sample."""
    examples, _ = build_examples(
        [sample],
        form.tokenizer,
        end_of_turn=form.marker,
        max_prompt_length=max_prompt_length,
        max_reply_length=40,
        frame=form.dialogue.frame(),
        rules=ConversationRules(**rules),
    )
    return [(example["input_ids"], example["labels"]) for example in examples]


@pytest.mark.parametrize("limits", [{}, {"max_prompt_length": 60}, {"context_turns": 3}], ids=["all", "long", "turns"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_rows_are_those_of_a_rollout(name, kind, limits):
    form = built(name, kind)
    samples = dialogues(form, 8, 10)
    n_rows = 0
    for sample in samples:
        learned = learned_rows(sample, form, **limits)
        assert learned == rows_of(rolled_out(sample, form, **limits))
        n_rows += len(learned)
    assert n_rows == len(samples) if not limits else n_rows > len(samples)


@pytest.mark.parametrize("rules", RULES, ids=["markup", "length", "partner ends", "agent ends", "all"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_partners_texts_are_those_of_a_rollout(name, kind, rules):
    form = built(name, kind)
    markup, n_changed = form.dialogue.frame().markup, 0
    for i, sample in enumerate(dialogues(form, 8, 10)):
        assert sample.meta_data is not None
        plain = learned_rows(sample, form)
        continuation = sample.meta_data["continuation"]
        continuation[::2] = [f"{text}{markup[i % len(markup)]} tea" for text in continuation[::2]]
        learned = learned_rows(sample, form, **rules)
        assert learned == rows_of(rolled_out(sample, form, **rules))
        n_changed += learned != plain
    assert n_changed > 2


def test_encoders_have_one_example_per_turn():
    form = built("eou", "byte_level")
    for sample in dialogues(form, 6, 9):
        examples, _ = build_examples(
            [sample],
            form.tokenizer,
            end_of_turn=form.marker,
            max_prompt_length=400,
            max_reply_length=40,
            in_encoder=True,
            frame=form.dialogue.frame(),
        )
        found = [(example["input_ids"], example["labels"]) for example in examples]
        rolled = rolled_out(sample, form)
        # A decoder starts its reply alone, and not after the prompt.
        texts = [sample.references[0], *sample.meta_data["continuation"][1::2]]
        assert [labels for _, labels in found] == [encode_reply(form.tokenizer, text, form.marker) for text in texts]
        assert found[0][0] == rolled[0][0] and len(found) == len(rolled)


LENGTHS = {"end_of_turn": None, "max_prompt_length": 6, "max_reply_length": 6}
# Replies count on from the prompt's last word: something to learn.
SAMPLES = [Sample(i, f"w{i}", [" ".join(f"w{j}" for j in range(i + 1, i + 2 + i % 3))]) for i in range(8)]


def make_model(tokenizer, **overrides):
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return make_gpt2(tokenizer, **{**no_dropout, **overrides})


def example_sets(model, tokenizer, samples=SAMPLES, **kwargs):
    return build_example_sets(model.config, tokenizer, samples, **LENGTHS, **kwargs)


def train(model, tokenizer, seed=0, samples=SAMPLES, **args):
    arguments = {"per_device_train_batch_size": 8, "num_train_epochs": 1, "learning_rate": 1e-3, **args}
    examples = example_sets(model, tokenizer, samples)
    metrics = train_supervised(model, examples, training_args=arguments, seed=seed)
    model.to("cpu")
    return metrics


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def naive_mean_loss(model, examples):
    """Token by token, without padding."""
    losses = [
        -functional.log_softmax(next_token(model, example["input_ids"][:position], [])[0], dim=-1)[label]
        for example in examples
        for position, label in enumerate(example["labels"])
        if label != IGNORED_LABEL
    ]
    return torch.stack(losses).mean()


@pytest.mark.parametrize(
    ("make", "args"),
    [
        (make_model, {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}),
        (make_model, {"per_device_train_batch_size": 7, "label_smoothing_factor": 0.2}),
        (partial(make_t5, dropout_rate=0.0), {"per_device_train_batch_size": 7, "max_grad_norm": 0.1}),
    ],
)
def test_two_processes_fine_tune_as_one(make, args, tokenizer, tmp_path):
    """Batches that cannot be halved; the last one can have one example. The epsilon keeps rounding from a step."""

    def work(number):
        model = make(tokenizer)
        metrics = train(model, tokenizer, num_train_epochs=2, learning_rate=1e-2, adam_epsilon=1e-5, **args)
        return weights(model).tolist(), metrics["train_loss"]

    start, (alone, loss) = weights(make(tokenizer)), work(0)
    first, second = in_two_processes(work, tmp_path)
    assert first == second
    assert first[1] == pytest.approx(loss, abs=1e-6)
    assert (torch.tensor(alone) - start).abs().max() > 1e-2
    torch.testing.assert_close(torch.tensor(first[0]), torch.tensor(alone), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("batch_size", "n_accumulated"), [(8, 1), (2, 4)])
def test_one_full_batch_step_equals_a_step_by_hand(tokenizer, batch_size, n_accumulated):
    ours, by_hand = make_model(tokenizer), make_model(tokenizer)
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    loss = naive_mean_loss(by_hand, build_examples(SAMPLES, tokenizer, **LENGTHS)[0])
    loss.backward()
    optimizer.step()
    sgd = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    size = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": n_accumulated}
    metrics = train(ours, tokenizer, **sgd, **size)
    n_tokens = sum(len(example["input_ids"]) for example in build_examples(SAMPLES, tokenizer, **LENGTHS)[0])
    assert (metrics["n_steps"], metrics["n_examples"]) == (1, 8)
    assert metrics["tokens_per_s"] * metrics["train_runtime_s"] == pytest.approx(n_tokens)
    assert metrics["train_loss"] == pytest.approx(loss.item(), rel=1e-5)
    torch.testing.assert_close(weights(ours), weights(by_hand), rtol=1e-5, atol=1e-6)


def test_training_does_not_depend_on_the_callers_grad_mode(tokenizer):
    with_grad, without = make_model(tokenizer), make_model(tokenizer)
    train(with_grad, tokenizer)
    with torch.no_grad():
        train(without, tokenizer)
    assert torch.equal(weights(with_grad), weights(without))


@pytest.mark.parametrize("of_dialogues", [False, True])
def test_batches_have_examples_of_similar_length_but_dialogues_are_shuffled(tokenizer, of_dialogues, monkeypatch):
    model = make_model(tokenizer)
    short, long = ({"input_ids": [5] * n, "labels": [5] * n} for n in (2, 6))
    lengths = []

    class Recorder(PaddingCollator):
        def __call__(self, examples):
            lengths.append({len(example["input_ids"]) for example in examples})
            return super().__call__(examples)

    monkeypatch.setattr("rl4dialog.training.supervised.PaddingCollator", Recorder)
    sets = ExampleSets([short, long] * 32, Truncation(), of_dialogues=of_dialogues)
    arguments = {"per_device_train_batch_size": 4, "num_train_epochs": 1}
    train_supervised(model, sets, training_args=arguments, seed=0)
    assert len(lengths) == 16 and (sum(len(each) > 1 for each in lengths) > 8) == of_dialogues


def test_same_seed_gives_the_same_weights_and_another_one_others(tokenizer):
    trained = []
    for seed in (0, 0, 1):
        torch.manual_seed(random.randrange(1000))
        model = make_gpt2(tokenizer)  # with dropout
        train(model, tokenizer, seed=seed, per_device_train_batch_size=2)
        trained.append(weights(model))
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(trained[0], trained[2])


def test_nothing_but_the_weights_is_changed(tokenizer):
    model = make_model(tokenizer)
    config, generation_config = copy.deepcopy(model.config.to_dict()), model.generation_config.to_dict()
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state()
    train(model, tokenizer, seed=123)
    assert model.config.to_dict() == config
    assert model.config.use_cache is True
    assert model.generation_config.to_dict() == generation_config
    assert not model.training
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.random.get_rng_state(), states[2])


@pytest.mark.parametrize(("n_epochs", "args", "n_notes"), [(1, {}, 0), (3, {}, 0), (3, {"warmup_steps": 3}, 1)])
def test_a_warmup_leaves_steps_to_train_or_says_so(tokenizer, n_epochs, args, n_notes, capsys):
    model = make_model(tokenizer)
    before = weights(model)
    batch = {"per_device_train_batch_size": len(SAMPLES) * 9, "num_train_epochs": n_epochs, "warmup_ratio": 0.05}
    train(model, tokenizer, **{**batch, **args})
    assert not torch.equal(weights(model), before)
    assert capsys.readouterr().err.count("is not reached, because the warmup takes all 3 optimizer steps") == n_notes


def test_progress_and_nothing_else_is_printed(tokenizer, capfd):
    train(make_model(tokenizer), tokenizer, num_train_epochs=3, logging_steps=1)
    printed = capfd.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert all(line.startswith("Supervised, step ") for line in lines)
    assert lines[-1].startswith("Supervised, step 3/3: loss ")


def test_warm_start_draws_its_samples_by_the_seed(tokenizer, tmp_path):
    model, drawn = make_model(tokenizer), []
    data = Data({"train": TextGenPool(SAMPLES)}, None)
    for seed in (0, 0, 1):
        config = parse_config(make_config(tmp_path, seed=seed, warm_start={"max_samples": 4}), "test")
        texts = Texts(tokenizer, data, run_lengths(config, tokenizer, data))
        drawn.append(build_warm_start_examples(config, texts, model.config).train)
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({tuple(example["input_ids"]) for example in drawn[0]}) == 4


def test_held_out_losses_are_measured_without_changing_the_warm_start(tokenizer):
    trained, losses = [], []
    for val_samples in (None, SAMPLES):
        model = make_model(tokenizer)
        examples = example_sets(model, tokenizer, val_samples=val_samples)
        settings = WarmStartConfig(n_epochs=2.5, batch_size=4, lr_scheduler_type="linear")
        losses.append(warm_start(model, examples, settings, seed=0)["held_out_losses"])
        trained.append(weights_hash(model))
    assert trained[0] == trained[1]
    assert losses[0] == [] and len(losses[1]) == 4
    assert losses[1] == sorted(losses[1], reverse=True)


def test_warm_start_keeps_its_best_epoch(tokenizer):
    ends, losses, n_steps = [], [], []
    for keep_best in (False, True):
        model = make_model(tokenizer)
        examples = example_sets(model, tokenizer, val_samples=SAMPLES)
        settings = WarmStartConfig(
            n_epochs=12, batch_size=4, learning_rate=2.0, keep_best=keep_best, lr_scheduler_type="constant"
        )
        found = warm_start(model, examples, settings, seed=0)
        losses.append(found["held_out_losses"])
        n_steps.append(found["n_steps"])
        ends.append(mean_loss(model, examples.val, PaddingCollator(examples.pad_token_id), 4))
    assert losses[1] == losses[0][: len(losses[1])] and losses[1][-1] == min(losses[0]) < losses[0][-1]
    assert ends == pytest.approx([losses[0][-1], losses[1][-1]])
    n_epochs = len(losses[1]) - 1 + PATIENCE
    assert n_steps[1] == n_epochs * n_steps[0] / 12 < n_steps[0], "it ends after some epochs without a lower loss"
    with pytest.raises(ConfigError, match=r"warm_start\.keep_best compares losses of val replies, but there are none"):
        warm_start(model, example_sets(model, tokenizer), settings, seed=0)


def test_warm_start_that_has_learned_the_replies_ends(tokenizer, monkeypatch):
    def n_epochs():
        model = make_model(tokenizer)
        settings = WarmStartConfig(n_epochs=4, batch_size=4, learning_rate=0.01, keep_best=True)
        found = warm_start(model, example_sets(model, tokenizer, val_samples=SAMPLES), settings, seed=0)
        return len(found["held_out_losses"]) - 1, found["held_out_losses"]

    all_epochs, losses = n_epochs()
    assert all_epochs > 1
    monkeypatch.setattr("rl4dialog.training.supervised.LEARNED", losses[1] + 1e-6)
    assert n_epochs()[0] == 1


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([], None),
        ([4.0, 3.0, 2.0], None),
        ([4.0, 2.0, 2.03], None),
        ([4.0, 2.0, 2.5, 2.6], r"memorises .*lowest after epoch 1 of 3 \(2 nats per token\) and has risen to 2\.6"),
        ([2.0, 3.0], "harms the model: .* lowest before training .* has risen to 3; lower warm_start.learning_rate"),
    ],
)
def test_rising_held_out_loss_is_memorising(losses, words):
    found = memorised(losses)
    assert found is None if words is None else re.search(words, str(found))


def test_diverged_training_says_so_and_changes_no_mode(tokenizer):
    model = make_model(tokenizer)
    with pytest.raises(ConfigError, match=r"diverged.*lower learning_rate"):
        train(model, tokenizer, weight_decay=1e9, learning_rate=1.0, num_train_epochs=9)
    assert model.config.use_cache is True and not model.training


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"learning_rte": 1.0}, "no key 'learning_rte'; did you mean 'learning_rate'"),
        ({"learning_rate": "fast"}, "learning_rate: input should be a valid number, got 'fast'"),
        ({"num_train_epochs": True}, "num_train_epochs: input should be a valid number, got True"),
        ({"use_cpu": 1}, "use_cpu: input should be a valid boolean, got 1"),
        ({"learning_rate": -1}, "learning_rate: input should be greater than 0, got -1"),
        ({"learning_rate": 0.0}, "learning_rate: input should be greater than 0, got 0.0"),
        ({"num_train_epochs": 1e9}, "num_train_epochs: input should be less than or equal to 10000"),
        ({"num_train_epochs": float("nan")}, "num_train_epochs: input should be a finite number, got nan"),
        ({"per_device_train_batch_size": 0}, "batch_size: input should be greater than or equal to 1, got 0"),
        ({"gradient_accumulation_steps": 1.5}, "accumulation_steps: input should be a valid integer, got 1.5"),
        ({"warmup_ratio": 1.5}, "warmup_ratio: input should be less than 1"),
        ({"lr_scheduler_type": "steep"}, r"alg\.training_args: steep is not a valid"),
    ],
)
def test_wrong_training_argument_is_named(tokenizer, args, message):
    with pytest.raises(ConfigError, match=message):
        train(make_model(tokenizer), tokenizer, **args)


def test_arguments_of_older_transformers_still_work():
    old = {"evaluation_strategy": "epoch", "warmup_ratio": 0.1, "no_cuda": True, "group_by_length": False}
    assert known_training_args(old) == {
        "eval_strategy": "epoch",
        "warmup_steps": 0.1,
        "use_cpu": True,
        "train_sampling_strategy": "random",
    }
    assert known_training_args({"overwrite_output_dir": True}) == {}


PROMPTS, REPLIES = [[3, 4, 5], [6]], [[7, 8, 0], [9, 0]]


@pytest.mark.parametrize("make_model", [make_gpt2, make_t5])
def test_loss_is_the_mean_over_the_tokens_of_the_drawn_replies(make_model):
    tokenizer = make_tokenizer()
    policy = make_policy(make_env(tokenizer), make_model(tokenizer))
    model = policy.language_model
    examples = [
        {"input_ids": prompt, "labels": reply}
        if model.config.is_encoder_decoder
        else {"input_ids": prompt + reply, "labels": [-100] * len(prompt) + reply}
        for prompt, reply in zip(PROMPTS, REPLIES, strict=True)
    ]
    torch.manual_seed(3)
    drawn = torch.randint(2, (5,)).tolist()
    assert set(drawn) == {0, 1}
    losses = [
        -next_token(model, PROMPTS[i], REPLIES[i][:t])[0].log_softmax(-1)[token]
        for i in drawn
        for t, token in enumerate(REPLIES[i])
    ]
    torch.manual_seed(3)
    loss = SupervisedLoss(examples, 1)(policy, 5)
    torch.testing.assert_close(loss, torch.stack(losses).mean(), rtol=1e-4, atol=1e-5)
    loss.backward()
    assert all(parameter.grad is not None for parameter in policy.actor_parameters())
