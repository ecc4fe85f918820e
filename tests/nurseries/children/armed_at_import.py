"""Says at once which death signal is set, how it was started, how many arguments it got, and its
score for the kernel's choice where memory is short.
"""

import ctypes
import os
import sys

armed = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(armed), 0, 0, 0)  # PR_GET_PDEATHSIG
with open("/proc/self/oom_score_adj", encoding="ascii") as file:
    score = file.read().strip()
os.write(int(sys.argv[1]), f"{armed.value} {__name__} {len(sys.argv)} {score}".encode())
