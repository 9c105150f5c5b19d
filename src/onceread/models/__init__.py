"""Model files: where they lie, what is in them, and how to get them. Knows neither llama.cpp nor the engine."""
