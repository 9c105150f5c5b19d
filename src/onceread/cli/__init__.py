"""The command line: `onceread serve` and what belongs to it."""
