"""HTTP: the API faces, each a thin translation between its API's words and the engine's."""
