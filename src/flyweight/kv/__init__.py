"""The K/V cache: which block holds whose tokens (`blocks`), and the arrays (`memory`)."""
