"""The two ends of every stream, and the transports behind them."""
