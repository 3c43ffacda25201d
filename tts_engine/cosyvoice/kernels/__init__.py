"""The networks for CUDA: Triton kernels and fused layers. Each has a plain twin in `models` and must give the same
result.
"""
