"""What steps cost: a model that is learnt from them, and how long they may take."""
