"""From logits to tokens. Stateless: a token depends on its logits, parameters and position only."""
