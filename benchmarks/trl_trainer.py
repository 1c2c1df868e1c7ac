"""TRL's RLOO and GRPO on the same workload, where the package ``trl`` is installed."""

from __future__ import annotations

import importlib.util
import queue
import tempfile
import threading
import time
from typing import Any

import peft
from datasets import Dataset
from transformers import TrainerCallback

from benchmarks.contestants import KL_COEFF, LEARNING_RATE, LORA, N_GENERATIONS, Setting, Timing, synchronize
from benchmarks.task import share_of_letters
from benchmarks.workloads import Workload, build_model, build_prompts


def is_installed() -> bool:
    """Whether TRL can take part."""
    return importlib.util.find_spec("trl") is not None


class TRL:
    """A TRL trainer in a thread that stops after every iteration until it is asked for the next."""

    def __init__(self, setting: Setting, workload: Workload) -> None:
        import trl

        config_class, trainer_class = {
            "rloo": (trl.RLOOConfig, trl.RLOOTrainer),
            "grpo": (trl.GRPOConfig, trl.GRPOTrainer),
        }[setting.algorithm]
        tokenizer, samples = build_prompts(workload)
        self._folder = tempfile.TemporaryDirectory()
        # TRL loads its reference from where the model came from.
        build_model(workload, setting.kind, tokenizer, setting.device).save_pretrained(self._folder.name)
        n_batches, half = workload.n_episodes // workload.batch_size, setting.precision == "bf16"
        config = config_class(
            output_dir=self._folder.name,
            per_device_train_batch_size=workload.batch_size,
            steps_per_generation=n_batches,
            num_iterations=workload.n_epochs,
            num_generations=N_GENERATIONS,
            max_completion_length=workload.max_reply_length,
            generation_kwargs={"min_new_tokens": workload.max_reply_length},
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_grad_norm=0.5,
            beta=KL_COEFF,
            top_k=0,
            max_steps=10**9,
            logging_steps=10**9,
            save_strategy="no",
            report_to="none",
            bf16=half,
            model_init_kwargs={"dtype": "bfloat16" if half and setting.lora else "float32"},
            gradient_checkpointing=False,
            use_cpu=setting.device == "cpu",
            disable_tqdm=True,
        )

        def reward(completions: list[str], **kwargs: Any) -> list[float]:
            return [share_of_letters("", text, [""], {}) for text in completions]

        self._turns = _Turns(steps_per_turn=n_batches * workload.n_epochs)
        self._trainer = trainer_class(
            model=self._folder.name,
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": sample.prompt_or_input_text} for sample in samples]),
            processing_class=tokenizer,
            callbacks=[self._turns],
            peft_config=peft.LoraConfig(**LORA) if setting.lora else None,
        )
        self._n_tokens = workload.n_tokens
        self._device = setting.device
        self._thread = threading.Thread(target=self._train, daemon=True)

    def _train(self) -> None:
        try:
            self._trainer.train()
        except BaseException as error:
            self._turns.done.put(error)
            raise

    def iterate(self) -> Timing:
        started = time.perf_counter()
        self._turns.go.put(True)
        if not self._thread.is_alive():
            self._thread.start()
        error = self._turns.done.get()
        if isinstance(error, BaseException):
            raise error
        synchronize(self._device)
        total = time.perf_counter() - started
        return Timing(total, {}, self._n_tokens)

    def close(self) -> None:
        self._folder.cleanup()


class _Turns(TrainerCallback):
    """Lets a trainer do a number of optimizer steps whenever there is something in ``go``."""

    def __init__(self, steps_per_turn: int) -> None:
        self.steps_per_turn = steps_per_turn
        self.go: queue.Queue[bool] = queue.Queue()
        self.done: queue.Queue[Any] = queue.Queue()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.go.get()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.steps_per_turn == 0:
            self.done.put(None)
            self.go.get()
