"""The networks for CUDA: Triton and CUDA kernels and fused layers. Each has a reference in ``models`` that it must
match.
"""
