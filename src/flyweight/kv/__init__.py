"""REMEMBERS: which block holds whose tokens (`blocks`), and the arrays behind them (`memory`)."""
