"""Text in, tokens out: chat templates, what is safe to put into them, and the prompts that come of it."""
