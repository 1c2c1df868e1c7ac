"""Openers of everyday chats."""
