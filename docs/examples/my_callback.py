"""A custom callback, as in stable-baselines3."""

from stable_baselines3.common.callbacks import BaseCallback

from rl4dialog import CallbackRegistry


@CallbackRegistry.register("question_watch")
class QuestionWatch(BaseCallback):
    """Logs the share of replies that are questions, and stops training if it exceeds a limit."""

    def __init__(self, limit=0.5):
        super().__init__()
        self.limit, self.share = limit, 0.0

    def _on_rollout_start(self):
        self.is_question = []

    def _on_step(self):
        texts = [info["gen_text"] for info in self.locals["infos"] if "gen_text" in info]
        self.is_question += [text.rstrip().endswith("?") for text in texts]
        return self.share <= self.limit

    def _on_rollout_end(self):
        self.share = sum(self.is_question) / len(self.is_question)
        self.logger.record("rollout/questions", self.share)
