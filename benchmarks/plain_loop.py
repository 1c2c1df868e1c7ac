"""The yardstick: PPO (or RLOO) for a language model as one writes it in a page of torch and transformers.

It is the page of the documentation, docs/examples/ppo_in_one_page.py, with replies of given lengths, and with the
encoder-decoders, adapters, precisions and critics of a setting. Nothing is trimmed or sorted: every batch is padded to
the longest prompt and reply of the iteration.
"""

from __future__ import annotations

import copy
import importlib.util
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import peft
import torch
from torch import Tensor, nn
from transformers import StoppingCriteria

from benchmarks.contestants import KL_COEFF, LEARNING_RATE, LORA, N_GENERATIONS, Setting, Timing, synchronize
from benchmarks.task import share_of_letters
from benchmarks.workloads import Workload, build_model, build_prompts

_PAGE = Path(__file__).parents[1] / "docs" / "examples" / "ppo_in_one_page.py"


def _page() -> Any:
    spec = importlib.util.spec_from_file_location("ppo_in_one_page", _PAGE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_page_of_docs = _page()


class _LengthByFirstToken(StoppingCriteria):
    def __init__(self, lengths: Tensor, n_before: int) -> None:
        self.lengths, self.n_before = lengths, n_before

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        wanted = self.lengths[input_ids[:, self.n_before] % len(self.lengths)]
        return input_ids.shape[1] - self.n_before >= wanted


class PlainLoop(_page_of_docs.PPO):  # type: ignore[misc, name-defined]
    """See the module's docstring."""

    def __init__(self, setting: Setting, workload: Workload) -> None:
        self.setting, self.workload, self.device = setting, workload, torch.device(setting.device)
        self.settings = _page_of_docs.Settings(
            batch_size=workload.batch_size,
            n_epochs=workload.n_epochs,
            learning_rate=LEARNING_RATE,
            kl_coeff=KL_COEFF,
            normalize_advantage=setting.critic != "none",
            device=setting.device,
        )
        self.tokenizer, self.samples = build_prompts(workload)
        self.reward = lambda prompt, reply: share_of_letters(prompt, reply, [""], {})
        model: Any = build_model(workload, setting.kind, self.tokenizer, setting.device)
        if setting.lora:
            model = model.bfloat16() if setting.precision == "bf16" else model
            model = peft.get_peft_model(model, peft.LoraConfig(**LORA))
        self.policy = model.to(self.device).eval()
        # With adapters, the model without them is the reference.
        self.reference = None if setting.lora else copy.deepcopy(self.policy).requires_grad_(False)
        self.value_head = nn.Linear(self.policy.config.get_text_config().hidden_size, 1).to(self.device)
        self.critic: Any = None
        trained = [p for p in self.policy.parameters() if p.requires_grad]
        if setting.critic != "none":
            trained += [*self.value_head.parameters()]
        if setting.critic == "separate":
            copied = copy.deepcopy(self.policy)
            language_model = copied.get_base_model() if setting.lora else copied
            # Without a head: its logits would be of no use.
            self.critic = language_model if setting.kind == "seq2seq" else language_model.base_model
            trained += [p for p in self.critic.parameters() if p.requires_grad]
        self.trained = trained
        self.optimizer = torch.optim.Adam(trained, lr=LEARNING_RATE, eps=1e-5)
        self.reply_lengths = torch.tensor(workload.reply_lengths, device=self.device)
        self.next_sample = 0

    def iterate(self) -> Timing:  # type: ignore[override]
        started = time.perf_counter()
        times = []

        def lap() -> None:
            synchronize(self.device)
            times.append(time.perf_counter())

        prompts = self.next_prompts()
        batch = self.generate(prompts)
        lap()
        self.score(batch, prompts)
        lap()
        self.estimate(batch)
        lap()
        for _ in range(self.settings.n_epochs):
            for rows in torch.randperm(len(prompts), device=self.device).split(self.settings.batch_size):
                self.update({name: tensor[rows] for name, tensor in batch.items()})
        lap()
        laps = [end - start for start, end in zip([started, *times], times, strict=False)]
        phases = dict(zip(("rollout", "score", "evaluate", "update"), laps, strict=True))
        return Timing(times[-1] - started, phases, int(batch["mask"].sum()))

    def close(self) -> None:
        """There is nothing to stop."""

    def next_prompts(self) -> list[str]:
        repeats = N_GENERATIONS if self.setting.critic == "none" else 1
        texts: list[str] = []
        for _ in range(self.workload.n_episodes // repeats):
            texts += [self.samples[self.next_sample % len(self.samples)].prompt_or_input_text] * repeats
            self.next_sample += 1
        return texts

    @torch.no_grad()
    def generate(self, prompts: list[str]) -> dict[str, Tensor]:
        encoded = self.tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt").to(self.device)
        n_before = 1 if self.setting.kind == "seq2seq" else encoded["input_ids"].shape[1]
        with self._autocast():
            generated = self.policy.generate(
                input_ids=encoded["input_ids"],
                attention_mask=encoded["attention_mask"],
                do_sample=True,
                top_k=0,
                max_new_tokens=self.workload.max_reply_length,
                eos_token_id=None,
                pad_token_id=self.tokenizer.pad_token_id,
                stopping_criteria=[_LengthByFirstToken(self.reply_lengths, n_before)],
            )
        replies = generated[:, n_before:]
        wanted = self.reply_lengths[replies[:, 0] % len(self.reply_lengths)]
        mask = torch.arange(replies.shape[1], device=self.device) < wanted[:, None]
        of_prompts = {"prompt_ids": encoded["input_ids"], "prompt_mask": encoded["attention_mask"]}
        return {**of_prompts, "reply_ids": replies, "mask": mask}

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.setting.precision == "bf16")

    def inputs(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.setting.kind == "causal":
            inputs: dict[str, Tensor] = super().inputs(batch)
            return inputs
        replies = batch["reply_ids"]
        start = torch.full_like(replies[:, :1], self.policy.config.decoder_start_token_id)
        decoder_ids = torch.cat([start, replies[:, :-1]], dim=1)
        return {
            "input_ids": batch["prompt_ids"],
            "attention_mask": batch["prompt_mask"],
            "decoder_input_ids": decoder_ids,
        }

    def log_probs(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        with self.policy.disable_adapter() if model is None else nullcontext():
            log_probs, _ = self._log_probs_and_hidden(model or self.policy, batch, with_hidden=False)
        return log_probs

    def evaluate(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        shared = self.setting.critic == "shared"
        log_probs, hidden = self._log_probs_and_hidden(self.policy, batch, with_hidden=shared)
        if self.setting.critic == "none":
            return log_probs, torch.zeros_like(log_probs)
        if hidden is None:
            hidden = self._critic_hidden(batch)
        return log_probs, self.value_head(hidden.float()).squeeze(-1)

    def _log_probs_and_hidden(
        self, model: Any, batch: dict[str, Tensor], with_hidden: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities of replies (B, T), and hidden states for a shared critic (B, T, H), from one pass."""
        replies, causal = batch["reply_ids"], self.setting.kind == "causal"
        keep = {"logits_to_keep": replies.shape[1] + 1} if causal else {}
        with self._autocast():
            output = model(**self.inputs(batch), **keep, output_hidden_states=with_hidden, use_cache=False)
        logits = output.logits[:, :-1] if causal else output.logits
        log_probs = logits.float().log_softmax(dim=-1).gather(-1, replies.unsqueeze(-1)).squeeze(-1)
        if not with_hidden:
            return log_probs, None
        hidden = output.hidden_states if causal else output.decoder_hidden_states
        return log_probs, self._before_replies(hidden[-1], batch)

    def _critic_hidden(self, batch: dict[str, Tensor]) -> Tensor:
        inputs = self.inputs(batch)
        with self._autocast():
            if self.setting.kind == "causal":
                hidden = self.critic(**inputs, use_cache=False).last_hidden_state
            else:
                ids = inputs.pop("decoder_input_ids")
                encoded = self.critic.get_encoder()(**inputs).last_hidden_state
                inputs = {"encoder_hidden_states": encoded, "encoder_attention_mask": inputs["attention_mask"]}
                hidden = self.critic.get_decoder()(input_ids=ids, **inputs, use_cache=False).last_hidden_state
        return self._before_replies(hidden, batch)

    def _before_replies(self, hidden: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """States before the tokens of replies: a decoder's are all of them."""
        return hidden[:, -batch["reply_ids"].shape[1] - 1 : -1] if self.setting.kind == "causal" else hidden

    def advantages(self, rewards: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if self.setting.critic != "none":
            advantages, returns = super().advantages(rewards, values, mask)
            return advantages, returns
        # RLOO: a reply against the mean of the others to the same prompt.
        sums = rewards.sum(dim=1).view(-1, N_GENERATIONS)
        baseline = (sums.sum(dim=1, keepdim=True) - sums) / (N_GENERATIONS - 1)
        return (sums - baseline).view(-1, 1) * mask, torch.zeros_like(rewards)
