"""An agent for a task that says the same, whatever is asked."""

from dataclasses import dataclass, field

from rl4dialog.features.dialogue_acts.tasks.acts import DialogueAct


@dataclass
class Said:
    understood: list[DialogueAct]
    acts: list[DialogueAct]
    text: str


@dataclass
class Judged:
    success: bool
    failures: list[str] = field(default_factory=list)


class Cafe:
    """Says that there is tea, but nothing after "hm"; the goal is to be told so. It does not understand "blah"."""

    name, domains = "cafe agent", ("cafe",)

    def __init__(self):
        self.fails_with = None
        self.reset()

    def reset(self):
        self.has_goal, self.n_replies, self.has_told = False, 0, False

    def draw_goal(self):
        self.reset()
        self.has_goal = True
        return "Find tea."

    def reply(self, text):
        if self.fails_with is not None:
            raise self.fails_with
        if text == "blah":
            return Said([], [], "")
        if text == "bye":
            return Said([DialogueAct("bye", "general")], [], "Goodbye.")
        self.n_replies += 1
        if text == "hm":
            return Said([DialogueAct("greet", "general")], [], "")
        self.has_told = True
        drink = DialogueAct("inform", "cafe", "drink", "tea")
        return Said([DialogueAct("request", "cafe", "drink")], [drink], "There is tea.")

    def outcome(self):
        if not self.has_goal or not self.n_replies:
            return None
        return Judged(True) if self.has_told else Judged(False, ["cafe: drink not told"])
