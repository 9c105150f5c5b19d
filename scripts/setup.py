"""Make .venv with everything in it: `make setup`. This file runs on any Python, to say if it is too old."""

import os
import sys

if sys.version_info < (3, 10):
    sys.stderr.write(
        "setup: Onceread needs Python 3.10 or newer, this is %d.%d; "
        "name another one: make setup PYTHON=python3.12\n" % sys.version_info[:2]
    )
    sys.exit(1)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import setup_venv

sys.exit(setup_venv.main())
