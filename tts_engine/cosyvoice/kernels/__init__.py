"""The networks again for CUDA: Triton kernels and fused layers, each with a plain twin in `models` that it has to
equal.
"""
