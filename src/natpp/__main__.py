"""`python -m natpp` is the command `natpp`."""

import sys

from natpp.cli import main

sys.exit(main())
