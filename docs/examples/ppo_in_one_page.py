"""PPO for a language model, on one page of torch and transformers: prompts, replies, rewards, KL, GAE, update.

It reads from top to bottom in the order of an iteration, and computes the numbers of `alg.id: ppo` with a separate
critic, without what makes runs long, safe and fast: conversations, checkpoints, evaluation, minibatches by length.
Shapes: B replies, P and T tokens of the longest prompt and reply, V words in the vocabulary, H the model's width.

    python docs/examples/ppo_in_one_page.py gpt2    # a name on the hub, or a folder with a causal model
"""

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = ["How are you?", "I started taking piano lessons.", "It rained all day.", "What is for dinner?"]


def short_reply(prompt: str, reply: str) -> float:
    """The reward: 1 for a reply of four words, and less the further its length is away from that."""
    return 1 / (1 + abs(len(reply.split()) - 4))


@dataclass
class Settings:
    n_iterations: int = 20
    n_replies: int = 32  # per iteration
    batch_size: int = 8  # replies per optimizer step
    n_epochs: int = 4  # passes over the replies of an iteration
    max_new_tokens: int = 16
    learning_rate: float = 1e-5
    kl_coeff: float = 0.05
    gamma: float = 1.0
    gae_lambda: float = 0.95
    normalize_advantage: bool = True
    clip_range: float = 0.2
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    device: str = "cpu"


Batch = dict[str, Tensor]  # tensors by name, a row for each reply


class PPO:
    """A policy, a frozen copy of it as the reference, and a critic with weights of its own."""

    def __init__(self, model: nn.Module, tokenizer, reward: Callable[[str, str], float], settings: Settings) -> None:
        self.tokenizer, self.reward, self.settings = tokenizer, reward, settings
        # Without dropout, so that a token has the same probability when it is sampled and when it is learned from.
        self.policy = model.to(settings.device).eval()
        self.reference = copy.deepcopy(self.policy).requires_grad_(False)
        # The critic needs no head over the vocabulary. Its own head starts at 0: the first advantages are then plain
        # returns, without the noise of an untrained network.
        self.critic = copy.deepcopy(self.policy.base_model)
        self.value_head = nn.Linear(self.policy.config.hidden_size, 1, device=settings.device)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        self.trained = [*self.policy.parameters(), *self.critic.parameters(), *self.value_head.parameters()]
        self.optimizer = torch.optim.Adam(self.trained, lr=settings.learning_rate, eps=1e-5)

    def iterate(self, prompts: list[str]) -> dict[str, float]:
        """One iteration: collect replies, judge them, learn from them. Returns what one wants to watch."""
        batch = self.generate(prompts)
        self.score(batch, prompts)
        self.estimate(batch)
        for _ in range(self.settings.n_epochs):
            for rows in torch.randperm(len(prompts), device=self.settings.device).split(self.settings.batch_size):
                self.update({name: tensor[rows] for name, tensor in batch.items()})
        kl = (batch["old_log_probs"] - batch["ref_log_probs"])[batch["mask"]].mean()
        return {"reward": batch["scores"].mean().item(), "KL per token": kl.item()}

    # -- 1. Replies ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def generate(self, prompts: list[str]) -> Batch:
        """Sample a reply to each prompt."""
        # Prompts are padded on the left, so that every reply starts in the same column.
        encoded = self.tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt").to(self.policy.device)
        sampled = self.policy.generate(
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            do_sample=True,
            top_k=0,  # a filter would sample from another distribution than the one that is trained
            max_new_tokens=self.settings.max_new_tokens,
            eos_token_id=self.tokenizer.eos_token_id,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        replies = sampled[:, encoded["input_ids"].shape[1] :]
        # The mask is True up to the first end-of-sequence token, which belongs to the reply: the model has to learn to
        # end. The number of ends *before* a token tells; the id of the padding does not, as it may be the end's.
        is_end = (replies == self.tokenizer.eos_token_id).long()
        mask = is_end.cumsum(dim=1) - is_end == 0
        of_prompts = {"prompt_ids": encoded["input_ids"], "prompt_mask": encoded["attention_mask"]}  # each (B, P)
        return {**of_prompts, "reply_ids": replies, "mask": mask}  # each (B, T)

    def score(self, batch: Batch, prompts: list[str]) -> None:
        """The task reward of each reply, (B,)."""
        replies = batch["reply_ids"].masked_fill(~batch["mask"], self.tokenizer.pad_token_id)
        texts = self.tokenizer.batch_decode(replies, skip_special_tokens=True)
        scores = [self.reward(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
        batch["scores"] = torch.tensor(scores, device=self.settings.device)

    # -- 2. What the models say about replies -------------------------------------------------------------------------

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Prompts and replies as one row each, (B, P + T). Positions count real tokens only."""
        attention_mask = torch.cat([batch["prompt_mask"], batch["mask"].long()], dim=1)
        return {
            "input_ids": torch.cat([batch["prompt_ids"], batch["reply_ids"]], dim=1),
            "attention_mask": attention_mask,
            "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0),
        }

    def log_probs(self, model: nn.Module, batch: Batch) -> Tensor:
        """Log-probability of each token of the replies, (B, T)."""
        replies = batch["reply_ids"]
        # The logits at a position are about the *next* token: the first are those of the last prompt token. Only these
        # T + 1 positions go through the head, which is the widest matrix of the model.
        output = model(**self.inputs(batch), logits_to_keep=replies.shape[1] + 1, use_cache=False)
        log_probs = output.logits[:, :-1].float().log_softmax(dim=-1)  # (B, T, V)
        return log_probs.gather(-1, replies.unsqueeze(-1)).squeeze(-1)

    def values(self, batch: Batch) -> Tensor:
        """Value of the state *before* each token, which has not been seen yet, (B, T)."""
        n_tokens = batch["reply_ids"].shape[1]
        hidden = self.critic(**self.inputs(batch), use_cache=False).last_hidden_state  # (B, P + T, H)
        return self.value_head(hidden[:, -n_tokens - 1 : -1].float()).squeeze(-1)

    def evaluate(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Log-probabilities and values of replies under the models as they are now, each (B, T)."""
        return self.log_probs(self.policy, batch), self.values(batch)

    # -- 3. Rewards and advantages ------------------------------------------------------------------------------------

    @torch.no_grad()
    def estimate(self, batch: Batch) -> None:
        """Add what the update needs: old log-probabilities, advantages and returns, each (B, T)."""
        mask, settings = batch["mask"], self.settings
        batch["old_log_probs"], values = self.evaluate(batch)
        batch["ref_log_probs"] = self.log_probs(self.reference, batch)
        # Every token pays for moving away from the reference; log p - log p_ref is an estimate of the KL divergence
        # from a single sample. The score of the whole reply is paid with its last token (Ziegler et al. 2019).
        rewards = -settings.kl_coeff * (batch["old_log_probs"] - batch["ref_log_probs"]) * mask
        rewards[torch.arange(len(mask), device=mask.device), mask.sum(dim=1) - 1] += batch["scores"]
        batch["advantages"], batch["returns"] = self.advantages(rewards, values, mask)

    def advantages(self, rewards: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Generalized advantage estimation (Schulman et al. 2016), from the last token to the first.

        delta_t = r_t + gamma V(s_{t+1}) - V(s_t) is how much better the step went than the critic expected, and
        A_t = delta_t + gamma lambda A_{t+1} sums these surprises. After the end of a reply there is no value.
        """
        advantages = torch.zeros_like(rewards)
        advantage = value = torch.zeros_like(rewards[:, 0])
        for t in reversed(range(rewards.shape[1])):
            delta = rewards[:, t] + self.settings.gamma * value - values[:, t]
            advantage = (delta + self.settings.gamma * self.settings.gae_lambda * advantage) * mask[:, t]
            value = values[:, t] * mask[:, t]
            advantages[:, t] = advantage
        return advantages, advantages + values

    # -- 4. The update ------------------------------------------------------------------------------------------------

    def update(self, batch: Batch) -> None:
        """One optimizer step. All means are over real tokens of the minibatch."""
        mask, settings = batch["mask"], self.settings
        log_probs, values = self.evaluate(batch)
        advantages = batch["advantages"][mask]
        if settings.normalize_advantage:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        # How much more probable a token is now than when it was sampled. The clipped objective takes away the gain from
        # moving further than the clip range (Schulman et al. 2017, eq. 7).
        ratio = (log_probs - batch["old_log_probs"])[mask].exp()
        clipped = ratio.clamp(1 - settings.clip_range, 1 + settings.clip_range)
        policy_loss = -torch.min(ratio * advantages, clipped * advantages).mean()
        value_loss = (values - batch["returns"])[mask].square().mean()
        self.optimizer.zero_grad()
        (policy_loss + settings.vf_coef * value_loss).backward()
        nn.utils.clip_grad_norm_(self.trained, settings.max_grad_norm)
        self.optimizer.step()


def main(model_name: str, settings: Settings) -> None:
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(model_name)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(model_name, dtype=torch.float32)
    ppo = PPO(model, tokenizer, short_reply, settings)
    prompts = (PROMPTS * settings.n_replies)[: settings.n_replies]
    for iteration in range(1, settings.n_iterations + 1):
        numbers = ppo.iterate(prompts)
        print(f"iteration {iteration}: " + ", ".join(f"{name} {value:.3f}" for name, value in numbers.items()))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "gpt2", Settings())
