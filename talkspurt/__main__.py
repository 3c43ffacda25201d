"""``python -m talkspurt``: the command without an installed script."""

import sys

from talkspurt.cli import main

sys.exit(main())
