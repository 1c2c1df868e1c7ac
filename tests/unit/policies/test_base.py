"""Ids without a token: a model with rows for them is the same policy as one without, and never chooses them."""

import copy
import json
from pathlib import Path

import pytest
import torch
from feature_rows import rows_of_features
from gguf_file import write_llama
from judges import save_judge
from tiny import MODELS, WORDS, make_env, make_policy, make_tokenizer, maskable_class_of
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.functional.masks import padded
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.maskable import MaskableSeq2SeqLMActorCriticPolicy
from rl4dialog.policies.models import check_fits, ids_without_token, language_model_without_weights, load_language_model
from rl4dialog.scores.judge import AnswerProbabilities
from rl4dialog.scores.perplexity import ReplyPerplexityMetric

TOKENIZER = make_tokenizer()
N = len(TOKENIZER)
N_SPARE = 5
PROMPTS = [[3, 4, 5], [6, 7], [8]]
REPLIES = [[9, 10, 11, 0], [12, 3, 0], [4, 5, 6, 7, 8]]
OTHERS = rows_of_features("UNTRAINED_POLICIES")
"""Makers of policies whose distribution is not trained: of environment, model, number of tokens and arguments."""


def with_spare_rows(model):
    """The model with more rows, which it finds more likely than most tokens."""
    larger = copy.deepcopy(model)
    larger.resize_token_embeddings(N + N_SPARE, mean_resizing=False)
    with torch.no_grad():
        larger.get_output_embeddings().weight[N:] = 4 * torch.randn(N_SPARE, larger.config.hidden_size)
    return larger.eval()


def make_pair(name, kind, **kwargs):
    """A policy whose model has a row per token, and the same with a model that has more."""
    exact = MODELS[name](TOKENIZER)
    exact.resize_token_embeddings(N, mean_resizing=False)
    if kind == "mask":
        kwargs |= {"policy_class": maskable_class_of(exact), "top_mask": 0.7}
    policies = []
    for model in (copy.deepcopy(exact), with_spare_rows(exact)):
        env = make_env(TOKENIZER, vocab_size=len(model.get_input_embeddings().weight))
        torch.manual_seed(0)
        policies.append(OTHERS[kind](env, model, N, **kwargs) if kind in OTHERS else make_policy(env, model, **kwargs))
    return policies[0], policies[1]


def obs(n_each=1):
    ids, mask = padded(PROMPTS * n_each, left=True)
    return {"prompt_ids": ids, "prompt_mask": mask}


def batch():
    return Replies.from_ids(PROMPTS, REPLIES, torch.device("cpu"))


@pytest.mark.parametrize("kind", ["plain", "mask", *OTHERS])
@pytest.mark.parametrize("name", MODELS)
def test_rows_without_a_token_change_nothing(name, kind):
    policies = exact, larger = make_pair(name, kind, generation_kwargs={"temperature": 0.1})
    assert not any("without_token" in name for name in larger.state_dict())
    observations = batch().observations
    actions = batch().flat("response_ids")
    for ours, theirs in zip(*(each.evaluate_actions(observations, actions) for each in policies), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    for which in ("sequence_log_probs", "reference_log_probs"):
        torch.testing.assert_close(*(getattr(each, which)(batch()) for each in policies), atol=1e-4, rtol=1e-4)
    distributions = [each.get_distribution(observations).distribution for each in policies]
    assert float(distributions[1].probs.detach()[:, N:].max()) == 0.0
    torch.testing.assert_close(*(each.entropy() for each in distributions), atol=1e-4, rtol=1e-4)
    kl = torch.distributions.kl_divergence(distributions[1], larger.get_distribution(observations).distribution)
    assert float(kl.detach().abs().max()) < 1e-6
    assert torch.equal(*(each.generate(obs(), do_sample=False).response_ids for each in policies))
    assert larger.action_space != exact.action_space
    if kind not in OTHERS:
        larger.evaluate_actions(observations, actions)[1].sum().backward()
    gradients = [each.grad for each in larger.actor_parameters() if each.grad is not None]
    assert all(bool(each.isfinite().all()) for each in gradients)


@pytest.mark.parametrize(
    "kwargs", [{}, {"top_k": N + 2}, {"top_p": 1 - 1e-6}, {"temperature": 2.0, "min_length": 3}], ids=str
)
@pytest.mark.parametrize("kind", ["plain", "mask", *OTHERS])
def test_samples_have_only_tokens(kind, kwargs):
    _, larger = make_pair("gpt2", kind, generation_kwargs=kwargs)
    found = larger.generate(obs(20))
    assert int(found.response_ids.max()) < N
    actions, _, _ = larger.forward(found.observations | obs(20))
    assert int(actions.max()) < N
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        steps = larger.stream({"prompt_ids": ids, "prompt_mask": torch.ones_like(ids).bool()})
        assert max(int(step.ids[0]) for step in steps) < N


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_beams_are_those_of_a_model_without_more_rows(name):
    pair = make_pair(name, "plain")
    ours, theirs = (each.generate(obs(), num_beams=3) for each in pair)
    assert torch.equal(ours.response_ids, theirs.response_ids)
    torch.testing.assert_close(ours.log_probs, theirs.log_probs, atol=1e-5, rtol=1e-5)


def test_gaps_and_added_tokens_are_told_apart():
    vocabulary = {word: 2 * i for i, word in enumerate(["<eos>", "<pad>", *WORDS[:4]])}  # even ids up to 10
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary)), eos_token="<eos>", pad_token="<pad>"
    )
    tokenizer.add_tokens([AddedToken("<EOU>")])
    added = tokenizer.convert_tokens_to_ids("<EOU>")
    assert ids_without_token(tokenizer, 14) == [id for id in range(14) if (id % 2 or id > 10) and id != added]
    model = MODELS["gpt2"](TOKENIZER)
    model.resize_token_embeddings(10, mean_resizing=False)
    with pytest.raises(ModelError, match="has only 10 embeddings"):
        check_fits(model, tokenizer, 4, 4, "some/model")


def set_layers(folder, n_layers):
    path = Path(folder, "config.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": n_layers}))


@pytest.mark.parametrize(
    "load",
    [
        lambda folder: load_language_model(folder, make_tokenizer(), 8, 8, AutoModelForCausalLM),
        lambda folder: ReplyPerplexityMetric(folder).compute(["Hi."], ["Hello."], [[]]),
        lambda folder: AnswerProbabilities(folder, {"A": 1.0, "B": 0.0}, cache=False).values(["Is it good?"]),
    ],
    ids=["policy", "perplexity", "judge"],
)
def test_missing_layers_are_named(tmp_path, load):
    folder = save_judge(tmp_path / "model", architecture="llama")
    set_layers(folder, 9)
    with pytest.raises(ModelError, match=r"weights are missing from its files.*model\.layers\."):
        load(folder)


def test_a_gguf_file_is_converted_before_its_architecture_is_built_without_weights(tmp_path):
    write_llama(tmp_path / "model.gguf")
    name = str(tmp_path / "model.gguf")
    with torch.device("meta"):
        model = language_model_without_weights(name, make_tokenizer(), 8, 8, AutoModelForCausalLM)
    assert model.device.type == "meta"
    assert load_language_model(name, make_tokenizer(), 8, 8, AutoModelForCausalLM).device.type == "cpu"


ARGUMENTS = "self, observation_space, action_space, lr_schedule, model_name, optimizer_kwargs={}, weight_decay=1e-6"
OF_RL4LMS = {
    "def _build_model_heads(self, model_name):\n        self._value_head = None": "_build_models",
    "def forward_policy(self, obs, actions, past_model_kwargs=None): ...": "_response_hidden",
    "def forward_value(self, obs, past_model_kwargs=None): ...": "_value_head, or _values",
    "def get_log_probs_ref_model(self, obs, action, past_model_kwargs=None): ...": "reference_log_probs",
    "def get_distribution(self, obs, detach=False): ...": "_logits",
    "def predict_values(self, obs): return self.forward(obs)[1]": "_value_head, or _values",
    f"def __init__({ARGUMENTS}):\n        super().__init__(observation_space, action_space, lr_schedule, model_name)": (
        "takes 'model_name', but gets model and end_of_turn"
    ),
    "def generate(self, tokenizer, texts=None, max_prompt_length=None, gen_kwargs=None): ...": "gets obs and settings",
    "def evaluate_actions(self, obs, actions, action_masks): ...": "gets obs and actions",
}


@pytest.mark.parametrize("base", [CausalLMActorCriticPolicy, MaskableSeq2SeqLMActorCriticPolicy])
@pytest.mark.parametrize(("method", "instead"), OF_RL4LMS.items())
@pytest.mark.parametrize("mixed_in", [False, True])
def test_override_that_would_not_be_called_is_refused_by_name(base, method, instead, mixed_in):
    name = method.partition("(")[0].removeprefix("def ")
    theirs = "class Theirs:" if mixed_in else "class Mine(base):"
    code = f"{theirs}\n    {method}\n" + "class Mine(Theirs, base): ..." * mixed_in
    with pytest.raises(ConfigError, match=rf"Mine\.{name} .*{instead}.*docs/your_own/policy\.md"):
        exec(code, {"base": base})
