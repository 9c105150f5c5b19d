"""``python -m onceread``, the same as the command ``onceread``."""

from __future__ import annotations

from onceread.cli.main import main

if __name__ == "__main__":
    main()
