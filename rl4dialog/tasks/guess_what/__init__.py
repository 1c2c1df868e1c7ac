"""Twenty questions: the partner thinks of a thing, and the agent asks yes/no questions until it can guess it."""
