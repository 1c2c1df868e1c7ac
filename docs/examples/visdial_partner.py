"""A partner that asks ILQL's server of visual dialogues for answers, and ends a dialogue as its cut-off rule does."""

import json
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from rl4dialog import Partner, PartnerRegistry, PartnerReply
from rl4dialog.core.errors import DataError, PartnerError
from rl4dialog.features.games.guess_the_picture import is_penalized


@PartnerRegistry.register("visdial")
class VisDial(Partner):
    """Answers about the picture of a sample that `visdial_log.py` made; the server says how much a question helped.

    `<stop>` of the agent ends the dialogue, for 0.

    Args:
        url: Address of the server.
        features: HDF5 file with the pictures' features (needs `pip install h5py`); without one, none are sent.
        dataset: Its dataset, such as `images_train`.
        percentile: Share of the way at which the dialogue ends, or after ten rounds; each earlier round costs 1.
            `None`: no such end, and the progress is the reward.
        yes_no: Which answers are paid less: `none`, `soft`, `hard` or `conservative`.
        yes_no_reward: What is added for them.
        timeout_s: Seconds to wait for an answer.
    """

    pays = True
    outcomes = ("progress",)

    def __init__(
        self,
        url: str,
        features: str | None = None,
        dataset: str = "images_train",
        percentile: float | None = 0.5,
        yes_no: str = "none",
        yes_no_reward: float = -2.0,
        timeout_s: float = 30.0,
    ):
        self.url, self.features, self.dataset, self.timeout_s = url, features, dataset, timeout_s
        self.percentile, self.yes_no, self.yes_no_reward = percentile, yes_no, yes_no_reward

    def reset(self, meta_info, seed):
        if not {"image", "start"} <= meta_info.keys():
            raise DataError("partner 'visdial' needs the samples of a log that visdial_log.py wrote")
        self.start, self.progress, self.picture = meta_info["start"], 0.0, []
        if self.features is not None:
            import h5py

            with h5py.File(self.features, "r") as file:
                row = [float(each) for each in file[self.dataset][meta_info["image"]]]
            length = sum(each * each for each in row) ** 0.5 or 1.0
            self.picture = [each / length for each in row]

    def reply(self, history):
        caption, *said = history
        if "<stop>" in said[-1]:
            return PartnerReply(leaves=True)
        spoken = [{"speaker": "answer" if i % 2 else "question", "text": text} for i, text in enumerate(said)]
        data = {"history": spoken, "img_features": self.picture}
        data["generation_kwargs"] = {"inference": "greedy", "beamSize": 1}
        form = {"caption": caption, **{name: json.dumps(value) for name, value in data.items()}}
        try:
            with urlopen(Request(self.url, urlencode(form).encode()), timeout=self.timeout_s) as answer:
                text, step = json.load(answer)
        except (OSError, ValueError, TypeError) as error:
            raise PartnerError(
                f"{self.url} gave no answer and progress within {self.timeout_s:g} s: {error}"
            ) from error
        self.progress += step
        if self.percentile is None:
            return PartnerReply(text, reward=step)
        is_over = self.progress / (1.0 - self.start) >= self.percentile or len(history) == 20
        penalty = self.yes_no_reward * is_penalized(text, self.yes_no)
        return PartnerReply(text, reward=penalty - (not is_over), leaves=is_over)

    def outcome(self):
        return {"progress": self.progress}
