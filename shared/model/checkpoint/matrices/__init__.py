"""Matrices of few bits per number as a checkpoint stores them: their tensors, and their numbers."""
