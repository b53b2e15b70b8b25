"""The tokens of a step: how a row chooses its own, and the check of drafts."""
