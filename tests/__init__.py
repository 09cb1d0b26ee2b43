"""The tests. This file is imported before torch is, and so can choose the processor instructions that torch uses."""

import os
import platform

# Processors with different vector instructions round sums differently. With these settings, which the tests' processes
# inherit, all x86-64 processors since 2013 use the same instructions, so the golden curves are equal on them.
if platform.machine() == "x86_64":
    os.environ |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
