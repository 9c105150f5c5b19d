"""The store: chunks of computed state in one tree, over RAM and disk. Knows tokens and bytes, not llama.cpp."""
