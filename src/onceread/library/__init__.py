"""The library: `Llama` as users of llama-cpp-python know it, over an engine that reads every prompt once."""
