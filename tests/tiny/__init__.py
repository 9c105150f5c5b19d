"""Tiny random-weight models of architectures that no package ships, written as GGUF by the tests themselves."""
