"""Says at once which death signal is set, how it was started, and how many arguments it got."""

import ctypes
import os
import sys

armed = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(armed), 0, 0, 0)  # PR_GET_PDEATHSIG
os.write(int(sys.argv[1]), f"{armed.value} {__name__} {len(sys.argv)}".encode())
