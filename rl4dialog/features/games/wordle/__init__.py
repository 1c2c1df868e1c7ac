"""Wordle: the agent guesses a hidden five-letter word, and the partner answers with colours."""
