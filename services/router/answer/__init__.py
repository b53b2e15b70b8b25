"""Answers: from the calls to decode workers to pieces of text, with replays."""
