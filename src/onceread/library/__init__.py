"""The library: what `from onceread import ...` gives, over the engine or over a server."""
