"""Conversations whose agent chooses a goal for each of its turns."""
