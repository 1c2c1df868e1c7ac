"""States of finished replies, and a reward's value of them."""

from types import SimpleNamespace

REFERENCES = ["the cat sat on the mat"]


def state(reply, references=None, prompt="hello"):
    """The state after a reply's tokens; here every word is one."""
    return SimpleNamespace(
        prompt_or_input_text=prompt,
        context_text=reply,
        context_ids=list(range(len(reply.split()))),
        target_or_reference_texts=references if references is not None else REFERENCES,
        meta_info={},
    )


def pay(reward, reply, done=True, meta_info=None, **of_state):
    """What a token-level reward pays on the last word of a reply."""
    before = state(" ".join(reply.split()[:-1]), **of_state)
    return float(reward(before, 1, state(reply, **of_state), done, meta_info or {}))
