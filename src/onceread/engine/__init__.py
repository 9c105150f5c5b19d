"""One thread that owns the context: plans what to reuse, reads the rest, decodes all replies together."""
