"""Checks of settings, prompts, references and tokenizer, and of conversations with a partner."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, MIN_SAMPLES, PARTNER, Sample
from rl4dialog.data.splits import folded
from rl4dialog.features.inspection.subject import Subject
from rl4dialog.policies.models import embedding_rows, ids_without_token
from rl4dialog.runs.summary import transcript
from rl4dialog.text.chat_template import ChatTemplate, start_time
from rl4dialog.text.end_of_turn import end_of_sequence_ids
from rl4dialog.text.prompts import encode_prompt
from rl4dialog.training.building.conditions import conditions_met
from rl4dialog.training.building.conversations import (
    build_conversing,
    check_conversations,
    chosen_partners,
    with_settings_of_run,
)
from rl4dialog.training.building.texts import format_args
from rl4dialog.training.findings import CUT_SHARE, Finding, NotApplicable, judged
from rl4dialog.training.random_state import random_states_kept

N_SAMPLES = 1000

# Above this fraction of repeated samples, scores of a held-out split also measure what the model remembers.
REPEATED_SHARE = 0.01

# Embeddings are rounded up to a multiple of at most 128. A larger surplus indicates a different tokenizer.
SPARE_ROWS = 0.05

# Fraction of sampled replies. With fewer than one of 32, the model has not learned to end replies.
ENDED_SHARE = 1 / 32

# Length at which a part of a displayed prompt is shortened.
_N_SHOWN = 300
_NO_LIMIT = 10**9

N_CONVERSATIONS = 8

# People repeat an utterance literally in 0.02 % of DailyDialog's turns.
ECHO_SHARE = 0.5


def settings(subject: Subject) -> Finding:
    """Check that every setting can do what it is for, and show the notes about the config."""
    met = conditions_met(subject.run_config)
    if refused := [message for message, level in met.items() if level == "refuse"]:
        return Finding("fail", "; ".join(refused), "change these settings; `rl4dialog train` refuses the run")
    if without_effect := [message for message, level in met.items() if level == "warn"]:
        return Finding("warn", "; ".join(without_effect), "change these settings, or remove them")
    return Finding("pass", "; ".join(subject.run_config.warnings) or "no setting without effect was found")


def first_prompt(subject: Subject) -> Finding:
    """Show a prompt of the train split as model input, with special tokens, and mark what is cut."""
    tokenizer, lengths, samples = subject.tokenizer, subject.lengths, _some_samples(subject)

    def encoded(sample: Sample, limit: int) -> list[int]:
        text = sample.prompt_or_input_text
        return encode_prompt(tokenizer, text, limit, lengths.truncation_side, lengths.turn_end)

    # The first one that is too long, or else the first.
    sample = next((each for each in samples if len(encoded(each, _NO_LIMIT)) > lengths.prompt), samples[0])
    ids, whole = encoded(sample, lengths.prompt), encoded(sample, _NO_LIMIT)
    n = next((i for i, (one, other) in enumerate(zip(ids, whole, strict=False)) if one != other), len(ids))
    before, cut, after = (
        _shortened(str(tokenizer.decode(part, skip_special_tokens=False)))
        for part in (ids[:n], whole[n : len(whole) - len(ids) + n], ids[n:])
    )
    shown = f"{before}[cut by max_prompt_length {lengths.prompt}: {cut}]{after}" if cut else before + after
    context_size = (format_args(subject.config) or {}).get("context_size")
    if context_size is not None and len((sample.meta_data or {}).get("history", ())) == context_size:
        shown = f"[cut by context_size {context_size}: earlier utterances, if any]{shown}"
    if tokenizer.bos_token_id is not None and ids[:2] == [tokenizer.bos_token_id] * 2:
        return Finding("warn", shown, f"it starts with {tokenizer.bos_token} twice: remove it from the data")
    if tokenizer.chat_template and not _has_chat_format(subject):
        advice = "the tokenizer has a chat template, but prompts do not use it; see datapool.args.format"
        return Finding("warn", shown, f"{advice}. This is fine if the model was not trained with it")
    return Finding("pass", shown)


def _shortened(text: str) -> str:
    return text if len(text) <= _N_SHOWN else f"{text[: _N_SHOWN // 2]} [...] {text[-_N_SHOWN // 2 :]}"


def prompts(subject: Subject) -> Finding:
    """Fraction of prompts that are longer than ``max_prompt_length`` and get truncated."""
    texts, limit = [sample.prompt_or_input_text for sample in _some_samples(subject)], subject.lengths.prompt
    lengths = [len(encode_prompt(subject.tokenizer, text, _NO_LIMIT)) for text in texts]
    advice = "raise env.args.max_prompt_length, or shorten the context"
    return _judged_lengths(lengths, limit, f"prompts are truncated to {limit} tokens", advice)


def references(subject: Subject) -> Finding:
    """Fraction of references that are longer than the reply limit."""
    limit = subject.lengths.reply
    texts = [text for sample in _some_samples(subject) for text in sample.references[:1] if text.strip()]
    if not texts:
        raise NotApplicable("the samples have no references")
    lengths = [1 + len(subject.tokenizer(text, verbose=False)["input_ids"]) for text in texts]
    advice = "raise env.args.max_episode_length and max_new_tokens"
    return _judged_lengths(lengths, limit, f"references have more than {limit} tokens", advice)


def _judged_lengths(lengths: list[int], limit: int, what: str, advice: str) -> Finding:
    cut = sum(length > limit for length in lengths) / len(lengths)
    measured = f"{cut:.1%} of {len(lengths)} {what}; the longest has {max(lengths)}"
    return judged(cut, measured, advice, warn_above=CUT_SHARE)


def held_out(subject: Subject) -> Finding:
    """Fraction of val and test samples whose prompt and goal another split has: val's train, and test's train or val.

    Case, whitespace and punctuation do not count.
    """
    if subject.data.pools["train"].repeats_prompts:
        raise NotApplicable("all splits have the same prompts, as in games")
    known = _with_references(subject, "train")
    if not known:
        raise NotApplicable("the samples have no references")
    shares, said = list[float](), list[str]()
    for split in [split for split in ("val", "test") if split in subject.data.pools]:
        if not (own := _with_references(subject, split)):
            continue
        prompts, whole = {prompt for prompt, _ in known}, set(known)
        shares.append(sum(prompt in prompts for prompt, _ in own) / len(own))
        equal = sum(each in whole for each in own) / len(own)
        said.append(f"{shares[-1]:.1%} of {len(own):,} {split} samples ({equal:.1%} with the same reply)")
        known += own
    if not shares:
        raise NotApplicable("there is no val or test split with references")
    advice = "scores on these splits are too good: remove repeated rows from the data, or say so beside the scores"
    measured = f"{', '.join(said)} have a prompt that is in another split, too"
    return judged(max(shares), measured, advice, warn_above=REPEATED_SHARE)


def evaluations(subject: Subject) -> Finding:
    """Number of samples in the evaluations of each split."""
    limit = subject.config.train_evaluation.max_eval_samples
    sizes = {split: len(subject.data.samples(split, limit)) for split in ("val", "test") if split in subject.data.pools}
    if not sizes:
        raise NotApplicable("there is no val or test split")
    measured = " and ".join(f"{n:,} {split} samples" for split, n in sizes.items()) + " in each evaluation"
    advice = f"no metric will have an interval or a verdict: evaluate at least {MIN_SAMPLES} samples of each split, by "
    advice += "train_evaluation.max_eval_samples or datapool.args.held_out_share"
    return judged(-min(sizes.values()), measured, advice, warn_above=-MIN_SAMPLES)


def chat_template(subject: Subject) -> Finding:
    """Check that prompts and labels are what the template writes, and that it only appends to a conversation."""
    if not _has_chat_format(subject):
        raise NotApplicable("the datapool's format is not chat_template")
    pool, env = subject.data.pools["train"], subject.config.env
    form, template = pool.dialogue_format, ChatTemplate(subject.tokenizer)
    if form is None or form.name != "chat_template":
        return Finding("fail", "no prompt contains a conversation", "the datapool ignores format: chat_template")
    try:
        pool.frame()
    except DataError as error:
        # In later turns the environment's prompts would differ from the template's.
        level = "fail" if env is not None and env.args.max_turns > 1 else "warn"
        return Finding(level, "; ".join([*form.faults, str(error)]), "for several turns, use a template that appends")
    if form.faults:
        return Finding("warn", "; ".join(form.faults), "what is learned is not all that the template writes")
    clock = f"; its date is {start_time():%Y-%m-%d}: a run keeps that of its start" if template.reads_clock else ""
    return Finding("pass", f"it writes prompts and labels, and only appends to a conversation{clock}")


def vocabulary(subject: Subject) -> Finding:
    """Check that the sizes of tokenizer and embedding match."""
    n_tokens, n_rows = len(subject.tokenizer), embedding_rows(subject.initial_model)
    n_spare = len(ids_without_token(subject.tokenizer, n_rows))
    measured = f"{n_tokens} tokens, {n_rows} embedding rows, {n_spare} of them without a token, which are never chosen"
    advice = "tokenizer.model_name and the policy's model_name may not match"
    return judged(n_spare / n_rows, measured, advice, warn_above=SPARE_ROWS)


def padding_token(subject: Subject) -> Finding:
    """Check that the padding id is within the embedding."""
    model, pad = subject.initial_model, subject.tokenizer.pad_token_id
    n_rows = embedding_rows(model)
    if pad is None or not 0 <= int(pad) < n_rows:
        found = "there is no pad token" if pad is None else f"the pad id {pad} is outside the {n_rows} embedding rows"
        return Finding("fail", found, "add a pad token to the tokenizer, or set tokenizer.pad_token_as_eos_token: true")
    if int(pad) in end_of_sequence_ids(subject.tokenizer, model.config, model.generation_config):
        return Finding("pass", f"id {pad}, which also ends sequences; this is fine, because masks are explicit")
    return Finding("pass", f"id {pad}, which does not end sequences")


def end_of_sequence(subject: Subject) -> Finding:
    """List the ids that end a reply, and check that tokenizer, model and generation config agree on them."""
    model, ends, env = subject.initial_model, subject.end_of_turn, subject.config.env
    sources: dict[str, Any] = {"tokenizer": subject.tokenizer, "model config": model.config}
    sources["generation config"] = model.generation_config
    named = {name: set(end_of_sequence_ids(source)) for name, source in sources.items()}
    measured = "; ".join(f"{name}: {sorted(ids) or 'none'}" for name, ids in named.items())
    if env is not None and not env.args.terminate_on_eos:
        return Finding("pass", f"terminate_on_eos: false, so replies have max_episode_length tokens ({measured})")
    if not ends.eos_token_ids and ends.marker is None:
        return Finding("fail", f"no token ends a reply ({measured})", "set the tokenizer's end-of-sequence token")
    if outside := [id for id in ends.eos_token_ids if id >= embedding_rows(model)]:
        advice = "correct the ids in its config"
        return Finding("fail", f"the model has no embedding for {outside} ({measured})", advice)
    own = named["tokenizer"]
    if any(ids and own and not own & ids for ids in named.values()):
        advice = f"all of them end a reply; supervised training uses {ends.marker or subject.tokenizer.eos_token}"
        return Finding("warn", f"the sources disagree: {measured}", advice)
    return Finding("pass", measured + (f"; turns end in {ends.marker!r}" if ends.marker else ""))


def reply_ends(subject: Subject) -> Finding:
    """Fraction of the model's replies that end before the length limit."""
    ids = [row.tolist() for row in subject.replies.per_row("response_ids")]
    ended = sum(subject.end_of_turn.is_end(row) for row in ids) / len(ids)
    settings, env = subject.algorithm.policy.settings, subject.config.env
    length = f"mean length {sum(map(len, ids)) / len(ids):.0f} tokens"
    measured = f"{ended:.0%} of {len(ids)} replies end before the limit, {length} (the model {subject.model_state})"
    never = env is not None and not env.args.terminate_on_eos
    if never or settings.min_length >= (settings.max_new_tokens or subject.lengths.reply) or subject.is_cold:
        return Finding("pass", measured)
    advice = "use warm_start or supervised training to learn the end of a reply, or raise max_episode_length"
    return judged(-ended, measured, advice, warn_above=-ENDED_SHARE)


def _some_samples(subject: Subject) -> list[Sample]:
    """Evenly spaced samples of the train split."""
    samples = subject.data.samples("train")
    return samples[:: max(1, len(samples) // N_SAMPLES)][:N_SAMPLES]


def _with_references(subject: Subject, split: str) -> list[tuple[str, tuple[str, ...]]]:
    """Folded prompt with goal, and references, of the samples that have references."""
    return [
        (folded(f"{each.prompt_or_input_text} {(each.meta_data or {}).get('goal_text', '')}"), tuple(each.references))
        for each in subject.data.samples(split)
        if any(each.references)
    ]


def _has_chat_format(subject: Subject) -> bool:
    return subject.config.datapool.args.get("format") == "chat_template"


def conversation(subject: Subject) -> Finding:
    """Hold conversations with the partner, show one, and check that the partner takes part in them."""
    config = subject.config.model_copy(deep=True)
    if config.env is None or config.env.args.conversation_partner is None:
        raise NotApplicable("the run has no conversation partner")
    check_conversations(config, subject.texts)
    config.train_evaluation.partner, config.train_evaluation.score_predictions = None, True
    policy, args = subject.algorithm.policy, config.env.args
    conversing = build_conversing(config, subject.texts, subject.scorer)
    assert conversing is not None
    conversing.begin_run(policy)
    samples = subject.data.samples("train", N_CONVERSATIONS)
    seeds = [derive_seed(config.seed, "doctor", i) for i in range(len(samples))]
    with random_states_kept():
        talks = conversing(policy, samples, seeds)
    dialogues = [talk.dialogue for talk in talks]
    shown = f"{transcript(dialogues[0])}\n(the model {subject.model_state})"
    if errors := [talk.error for talk in talks if talk.partner_failed]:
        measured = f"the partner failed in {len(errors)} of {len(talks)} conversations: {errors[0]}"
        level = "warn" if args.partner_on_error == "mask" else "fail"
        return Finding(level, measured, "see the message; partner_on_error: mask leaves out failures")
    if args.max_turns > 1 and not any(dialogue.texts(PARTNER) for dialogue in dialogues):
        advice = "check that the partner's answers have a text, and that end_when.partner does not remove it"
        return Finding("warn", f"the partner never says anything\n{shown}", advice)
    if args.max_turns > 1 and all(each.ended_by == "partner" and len(each.texts(AGENT)) <= 1 for each in dialogues):
        advice = "check when the partner leaves, and the patterns of end_when"
        return Finding("warn", f"the partner leaves after the first turn of every conversation\n{shown}", advice)
    of_partner = [text for each in dialogues for text in each.texts(PARTNER)]
    n_again = len(of_partner) - sum(len({*each.texts(PARTNER)}) for each in dialogues)
    is_learned = any("ending" in with_settings_of_run(each).args for each, _ in chosen_partners(config))
    if is_learned and n_again > ECHO_SHARE * len(of_partner):
        advice = "train it longer or on more people, and look at its conversations"
        return Finding(
            "warn", f"{n_again} of the partner's {len(of_partner)} utterances repeat its own\n{shown}", advice
        )
    pairs = [(said, answer) for each in dialogues for said, answer in pairwise(each.said) if answer.speaker == PARTNER]
    is_echo = [said.text == answer.text for said, answer in pairs if said.speaker == AGENT and said.text]
    n_echoes, n_answers = sum(is_echo), len(is_echo)
    if n_answers and n_echoes / n_answers > ECHO_SHARE:
        advice = "check the partner's model and format: it may read the conversation from the agent's side"
        return Finding("warn", f"{n_echoes} of the partner's {n_answers} answers repeat the agent\n{shown}", advice)
    return Finding("pass", shown)
