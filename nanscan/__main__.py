"""``python -m nanscan`` is the ``nanscan`` command (``torchrun -m nanscan run train.py`` needs it)."""

import sys

from nanscan.cli.main import main

sys.exit(main())
