"""The library: what a Python program holds instead of a server. The names people import are in `onceread` itself."""
