"""Chatting with a trained model in the terminal or on a web page, and recording user feedback."""
