"""A child whose imports never end: it gets no further than its first line."""

import os
import signal
import sys

os.write(int(sys.argv[1]), b"ready")
while True:
    signal.pause()
