"""The yardstick: PPO (or RLOO) for a language model as one writes it in a page of torch and transformers.

Generate with a KV cache, one forward pass for log-probabilities and values, the update. Nothing is trimmed or sorted:
every batch is padded to the longest prompt and reply of the iteration.
"""

from __future__ import annotations

import copy
import time
from contextlib import nullcontext
from typing import Any

import peft
import torch
from torch import Tensor, nn
from transformers import StoppingCriteria

from benchmarks.contestants import KL_COEFF, LEARNING_RATE, LORA, N_GENERATIONS, Setting, Timing, synchronize
from benchmarks.task import share_of_letters
from benchmarks.workloads import Workload, build_model, build_prompts

_CLIP_RANGE, _VF_COEF, _MAX_GRAD_NORM, _GAE_LAMBDA = 0.2, 0.5, 0.5, 0.95


class _LengthByFirstToken(StoppingCriteria):
    def __init__(self, lengths: Tensor, n_before: int) -> None:
        self.lengths, self.n_before = lengths, n_before

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        wanted = self.lengths[input_ids[:, self.n_before] % len(self.lengths)]
        return input_ids.shape[1] - self.n_before >= wanted


class PlainLoop:
    """See the module's docstring."""

    def __init__(self, setting: Setting, workload: Workload) -> None:
        self.setting, self.workload, self.device = setting, workload, torch.device(setting.device)
        self.tokenizer, self.samples = build_prompts(workload)
        model: Any = build_model(workload, setting.kind, self.tokenizer, setting.device)
        if setting.lora:
            model = model.bfloat16() if setting.precision == "bf16" else model
            model = peft.get_peft_model(model, peft.LoraConfig(**LORA))
        self.model = model.to(self.device).eval()
        # With adapters, the model without them is the reference.
        self.reference = None if setting.lora else copy.deepcopy(self.model).requires_grad_(False)
        width = self.model.config.get_text_config().hidden_size
        self.value_head = nn.Linear(width, 1).to(self.device)
        self.critic: Any = copy.deepcopy(self.model) if setting.critic == "separate" else None
        trained = [p for p in self.model.parameters() if p.requires_grad]
        if setting.critic != "none":
            trained += [*self.value_head.parameters()]
        if self.critic is not None:
            # Without a head: its logits would be of no use.
            language_model = self.critic.get_base_model() if setting.lora else self.critic
            self.critic = language_model if setting.kind == "seq2seq" else language_model.base_model
            trained += [p for p in self.critic.parameters() if p.requires_grad]
        self.trained = trained
        self.optimizer = torch.optim.Adam(trained, lr=LEARNING_RATE, eps=1e-5)
        self.reply_lengths = torch.tensor(workload.reply_lengths, device=self.device)
        self.next_sample = 0

    def iterate(self) -> Timing:
        started = time.perf_counter()
        times = []

        def lap() -> None:
            synchronize(self.device)
            times.append(time.perf_counter())

        prompts = self._next_prompts()
        replies, mask = self._generate(prompts)
        lap()
        texts = self.tokenizer.batch_decode(replies.masked_fill(~mask, self.tokenizer.pad_token_id))
        scores = torch.tensor([share_of_letters("", text, [""], {}) for text in texts], device=self.device)
        lap()
        batch = {"prompt_ids": prompts["input_ids"], "prompt_mask": prompts["attention_mask"]}
        batch |= {"replies": replies, "mask": mask}
        with torch.no_grad():
            batch["old_log_probs"], batch["old_values"] = self._forward(self.model, batch)
            with self.model.disable_adapter() if self.reference is None else nullcontext():
                ref_log_probs, _ = self._forward(self.reference or self.model, batch, with_values=False)
            rewards = -KL_COEFF * (batch["old_log_probs"] - ref_log_probs) * mask
            rewards[torch.arange(len(mask), device=self.device), mask.sum(dim=1) - 1] += scores
            if self.setting.critic == "none":
                batch["advantages"] = self._leave_one_out(rewards, mask)
                batch["returns"] = torch.zeros_like(rewards)
            else:
                batch["advantages"], batch["returns"] = self._gae(rewards, batch["old_values"], mask)
        lap()
        for _ in range(self.workload.n_epochs):
            for rows in torch.randperm(len(mask), device=self.device).split(self.workload.batch_size):
                self._update({name: tensor[rows] for name, tensor in batch.items()})
        lap()
        laps = [end - start for start, end in zip([started, *times], times, strict=False)]
        phases = dict(zip(("rollout", "score", "evaluate", "update"), laps, strict=True))
        return Timing(times[-1] - started, phases, int(mask.sum()))

    def close(self) -> None:
        """There is nothing to stop."""

    def _next_prompts(self) -> Any:
        n_prompts = self.workload.n_episodes
        repeats = N_GENERATIONS if self.setting.critic == "none" else 1
        texts = []
        for _ in range(n_prompts // repeats):
            texts += [self.samples[self.next_sample % len(self.samples)].prompt_or_input_text] * repeats
            self.next_sample += 1
        return self.tokenizer(texts, padding=True, padding_side="left", return_tensors="pt").to(self.device)

    @torch.no_grad()
    def _generate(self, prompts: Any) -> tuple[Tensor, Tensor]:
        seq2seq = self.setting.kind == "seq2seq"
        n_before = 1 if seq2seq else prompts["input_ids"].shape[1]
        with self._autocast():
            generated = self._sample(prompts, n_before)
        replies = generated[:, n_before:]
        wanted = self.reply_lengths[replies[:, 0] % len(self.reply_lengths)]
        return replies, torch.arange(replies.shape[1], device=self.device) < wanted[:, None]

    def _sample(self, prompts: Any, n_before: int) -> Tensor:
        generated: Tensor = self.model.generate(
            input_ids=prompts["input_ids"],
            attention_mask=prompts["attention_mask"],
            do_sample=True,
            top_k=0,
            max_new_tokens=self.workload.max_reply_length,
            eos_token_id=None,
            pad_token_id=self.tokenizer.pad_token_id,
            stopping_criteria=[_LengthByFirstToken(self.reply_lengths, n_before)],
        )
        return generated

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.setting.precision == "bf16")

    def _forward(self, model: Any, batch: dict[str, Tensor], with_values: bool = True) -> tuple[Tensor, Tensor]:
        """Log-probabilities and values of replies, each (B, T)."""
        replies = batch["replies"]
        with self._autocast():
            logits, hidden = self._outputs(model, batch, with_values and self.setting.critic != "none")
        log_probs = logits.float().log_softmax(dim=-1).gather(-1, replies.unsqueeze(-1)).squeeze(-1)
        values = self.value_head(hidden.float()).squeeze(-1) if hidden is not None else torch.zeros_like(log_probs)
        return log_probs, values

    def _outputs(self, model: Any, batch: dict[str, Tensor], with_values: bool) -> tuple[Tensor, Tensor | None]:
        """Logits of replies (B, T, V), and the hidden states for their values (B, T, H)."""
        replies, mask = batch["replies"], batch["mask"]
        n_replies, shared = replies.shape[1], with_values and self.critic is None
        if self.setting.kind == "seq2seq":
            start = torch.full_like(replies[:, :1], model.config.decoder_start_token_id)
            inputs = {
                "input_ids": batch["prompt_ids"],
                "attention_mask": batch["prompt_mask"],
                "decoder_input_ids": torch.cat([start, replies[:, :-1]], dim=1),
            }
            output = model(**inputs, output_hidden_states=shared, use_cache=False)
            logits = output.logits
            hidden = output.decoder_hidden_states[-1] if shared else None
            if with_values and not shared:
                hidden = self._critic_hidden(**inputs)
        else:
            attention_mask = torch.cat([batch["prompt_mask"], mask.long()], dim=1)
            inputs = {
                "input_ids": torch.cat([batch["prompt_ids"], replies], dim=1),
                "attention_mask": attention_mask,
                "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0),
            }
            output = model(**inputs, logits_to_keep=n_replies + 1, output_hidden_states=shared, use_cache=False)
            logits = output.logits[:, :-1]
            hidden = output.hidden_states[-1] if shared else None
            if with_values and not shared:
                hidden = self.critic(**inputs, use_cache=False).last_hidden_state
            hidden = hidden[:, -n_replies - 1 : -1] if hidden is not None else None
        return logits, hidden

    def _critic_hidden(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensor:
        """Of an encoder-decoder critic, without its head. Shape (B, T, H)."""
        encoded = self.critic.get_encoder()(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        output = self.critic.get_decoder()(
            input_ids=decoder_input_ids,
            encoder_hidden_states=encoded,
            encoder_attention_mask=attention_mask,
            use_cache=False,
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _update(self, batch: dict[str, Tensor]) -> None:
        mask = batch["mask"]
        log_probs, values = self._forward(self.model, batch)
        advantages = batch["advantages"]
        if self.setting.critic != "none":
            chosen = advantages[mask]
            advantages = (advantages - chosen.mean()) / (chosen.std() + 1e-8)
        ratio = (log_probs - batch["old_log_probs"]).exp()
        clipped = ratio.clamp(1 - _CLIP_RANGE, 1 + _CLIP_RANGE)
        loss = -torch.min(ratio * advantages, clipped * advantages)[mask].mean()
        if self.setting.critic != "none":
            loss = loss + _VF_COEF * (values - batch["returns"])[mask].square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, _MAX_GRAD_NORM)
        self.optimizer.step()

    @staticmethod
    def _gae(rewards: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        advantages, last = torch.zeros_like(rewards), torch.zeros_like(rewards[:, 0])
        next_values = torch.zeros_like(last)
        for t in reversed(range(rewards.shape[1])):
            delta = rewards[:, t] + next_values - values[:, t]
            last = (delta + _GAE_LAMBDA * last) * mask[:, t]
            advantages[:, t], next_values = last, values[:, t] * mask[:, t]
        return advantages, advantages + values

    @staticmethod
    def _leave_one_out(rewards: Tensor, mask: Tensor) -> Tensor:
        sums = rewards.sum(dim=1).view(-1, N_GENERATIONS)
        baseline = (sums.sum(dim=1, keepdim=True) - sums) / (N_GENERATIONS - 1)
        return (sums - baseline).view(-1, 1) * mask
