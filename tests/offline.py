"""Logs and algorithms of offline learning, small enough for exact comparisons."""

import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv
from tokenizers import AddedToken

from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Frame, Turn
from rl4dialog.envs.conversation import ConversationRules
from rl4dialog.features.offline.algorithms.bc import BC
from rl4dialog.features.offline.conversation_log import ConversationEncoder, ConversationLog, _write
from rl4dialog.features.offline.policies.value_guided import (
    ValueGuidedCausalLMPolicy,
    ValueGuidedSeq2SeqLMPolicy,
    ValueRerankedCausalLMPolicy,
)
from rl4dialog.functional.advantages import Turns
from rl4dialog.rollouts.learned_turns import Limits
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.tokenizer import tokenizer_hash
from tests.tiny import all_tokens, make_env, make_gpt2, make_tokenizer, policy_class_of

MARKER = "<EOU>"
# What the partner and the agent say in turns, with the agent's rewards.
CONVERSATIONS = [
    (["w1 w2", "w3 w4", "w5", "w6 w7 w8", "w1"], [1.0, -2.0], True),
    (["w2", "w9", "w1 w2 w3 w4", "w5 w6"], [0.5, 3.0], True),
    (["w7 w8 w9", "w3"], [2.0], True),
    (["w4", "w1 w1 w2", "w6 w6", "w8", "w3 w2"], [0.0, -1.0], False),
    (["w5 w1", "w2 w3 w4 w5"], [-3.0], True),
]


def marked_tokenizer():
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken(MARKER, lstrip=True, normalized=False)])
    return tokenizer


def dialogues(conversations=CONVERSATIONS, of_first=None):
    """Conversations that begin with the partner; `of_first` is a further reward of the first token of each turn."""
    of_tokens = {} if of_first is None else {"token_rewards": [of_first]}
    found = []
    for number, (texts, rewards, terminated) in enumerate(conversations):
        paid = iter(rewards)
        turns = [
            Turn(text, AGENT, reward=next(paid), **of_tokens) if i % 2 else Turn(text, PARTNER)
            for i, text in enumerate(texts)
        ]
        found.append(Dialogue(number, tuple(turns), n_given=1, terminated=terminated, prompt=f"{texts[0]} {MARKER}"))
    return found


def make_encoder(model, join_turns=True, prompt=40, **settings):
    tokenizer = marked_tokenizer()
    in_encoder = model.config.is_encoder_decoder
    return ConversationEncoder(
        EndOfTurn(tokenizer, [0], MARKER),
        Limits(prompt, 8),
        Frame.plain(MARKER),
        ConversationRules(),
        tokenizer_hash(tokenizer),
        join_turns=join_turns and not in_encoder,
        in_encoder=in_encoder,
        **settings,
    )


def make_log(folder, model, found=None, **settings):
    """A log in a folder of its own."""
    encoder = make_encoder(model, **settings)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, dialogues() if found is None else found, encoder)
    return ConversationLog(folder)


def guided_class_of(model):
    return ValueGuidedSeq2SeqLMPolicy if model.config.is_encoder_decoder else ValueGuidedCausalLMPolicy


def make_learner(algorithm, log, model, reranked=False, **args):
    """An algorithm on full batches, with heads that are not 0; values are those of tokens, or of replies."""
    guided = "guided" in algorithm.policy_kinds and not reranked
    of_policy = {"guidance": {"beta": 2.0}, **args.pop("policy", {})} if guided else args.pop("policy", {})
    n = int(log.n_tokens.sum())
    plain_class = ValueRerankedCausalLMPolicy if reranked else policy_class_of(model)
    learner = algorithm(
        guided_class_of(model) if guided else plain_class,
        DummyVecEnv([lambda: make_env(marked_tokenizer())]),
        log,
        n_steps=n,
        batch_size=n,
        policy_kwargs={
            "model": model,
            "end_of_turn": EndOfTurn(marked_tokenizer(), [0], MARKER),
            **of_policy,
            **algorithm.policy_arguments(),
        },
        seed=0,
        device="cpu",
        **args,
    )
    if guided or reranked:
        randomize(learner.policy)
    learner.set_logger(Logger(folder=None, output_formats=[]))
    return learner


def randomize(policy, seed=0):
    """Heads whose values differ from token to token, and other ones in the lagging copy."""
    random = torch.Generator().manual_seed(seed)
    for heads in (policy.heads, policy._target_heads):
        for head in (*heads.q, heads.output):
            torch.nn.init.normal_(head.output.weight, std=0.3, generator=random)
            torch.nn.init.normal_(head.output.bias, std=0.3, generator=random)


def part_trunks(policy):
    """Let the values' trunk and its lagging copy differ from the language model and from each other."""
    random = torch.Generator().manual_seed(1)
    for trunk in (policy.heads.trunk, policy._target_heads.trunk):
        for parameter in () if trunk is None else trunk.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=random)


def hidden_states(policy, prompt, reply):
    """Logits, and hidden states of values and lagging values, before each token of a reply and after the last: one row.

    Shapes (len(reply) + 1, V) and twice (len(reply) + 1, H).
    """
    logits, of_model = all_tokens(policy.language_model, prompt, reply)
    found = [logits, of_model]
    for heads in (policy.heads, policy._target_heads):
        read = torch.tensor([[*prompt, *reply]])
        found.append(found[-1] if heads.trunk is None else heads.trunk(read).last_hidden_state[0, len(prompt) - 1 :])
    return logits, found[2], found[3].detach()


def gradients(learner, batches):
    """Gradients of one minibatch in parts, as the algorithm adds them up."""
    learner.policy.zero_grad()
    weights = [batch.flat("loss_weights") for batch in batches]
    n_tokens = sum(float(each.sum()) for each in weights)
    n_turns = sum(float(w[Turns.of(b).last].sum()) for w, b in zip(weights, batches, strict=True))
    for batch in batches:
        learner._means(batch, n_tokens, n_turns)["loss"].backward()
    return {name: p.grad.clone() for name, p in learner.policy.named_parameters() if p.grad is not None}


def assert_gradients(learner, expected_loss, *batches):
    """Of each of the batches, in parts, they are those of an expected loss, whose graph holds the same weights."""
    learner.policy.zero_grad()
    expected_loss.backward()
    expected = {name: p.grad.clone() for name, p in learner.policy.named_parameters() if p.grad is not None}
    for parts in batches:
        found = gradients(learner, parts)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5)


def whole_batch(learner):
    """All conversations of the log, prepared."""
    import numpy as np

    return learner.prepared(learner.log.replies(np.arange(len(learner.log))))


@torch.no_grad()
def make_guided(env, model, n_tokens, **kwargs):
    """A policy whose values differ from token to token, and are highest for ids without a token."""
    spaces, end = (env.observation_space, env.action_space), env.end_of_turn
    kwargs = {"critic": "shared", "guidance": {"beta": 2.0, "prior_weight": 0.0}, **kwargs}
    policy = guided_class_of(model)(*spaces, lambda _: 1e-3, model=model, end_of_turn=end, **kwargs)
    random = torch.Generator().manual_seed(0)
    for heads in (policy.heads, policy._target_heads):
        for head in heads.q:
            torch.nn.init.normal_(head.inner[0].weight, std=0.1, generator=random)
            head.inner[0].bias.zero_()
            head.output.weight[:n_tokens] = torch.randn(n_tokens, head.output.in_features, generator=random)
            head.output.bias[n_tokens:] = 9.0
    return policy


def make_bc(folder, learning_rate):
    """Behaviour cloning of a log in a folder of its own."""
    model = make_gpt2(marked_tokenizer())
    return make_learner(BC, make_log(folder, model), model, learning_rate=learning_rate)
