"""A child that ignores all it can: the death pipe, SIGTERM, SIGINT. No trio: it is quick."""

import os
import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.write(int(sys.argv[1]), b"ready")
    while True:
        signal.pause()
