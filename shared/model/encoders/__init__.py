"""Models whose tokens see those behind them too: states of whole texts, without a cache."""
