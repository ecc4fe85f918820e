"""A child that dies at once, with an exit code of its own."""

import os

if __name__ == "__main__":
    os._exit(3)
