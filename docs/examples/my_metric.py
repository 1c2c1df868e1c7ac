"""A custom metric."""

from rl4dialog import BaseMetric, MetricRegistry


@MetricRegistry.register("share_of_questions")
class ShareOfQuestions(BaseMetric):
    """Share of replies that end in a question mark."""

    def compute(self, prompt_texts, generated_texts, reference_texts, meta_infos=None, model=None, split_name=None):
        scores = [float(text.rstrip().endswith("?")) for text in generated_texts]
        return {"style/questions": (scores, sum(scores) / len(scores))}
