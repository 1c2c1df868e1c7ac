"""Replies to comments, with rudeness and upvotes."""
