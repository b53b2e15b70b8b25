"""Proposers with weights: a draft model, EAGLE, Medusa."""
