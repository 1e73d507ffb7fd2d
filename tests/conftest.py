"""Settings that must stand before torch is imported."""

import os

# Some virtual machines announce AMX and refuse its instructions: a bfloat16 product then ends the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# Two processes of pytest-xdist share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test may reach for the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
