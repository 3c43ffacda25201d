"""Compile the kernels to machine code of an H200 (sm_90), without one:
``python -m tests.tts_engine.cosyvoice.kernels.compile_kernels``.

The interpreter that other tests use takes things for right that the compiler refuses. Types and sizes here are those of
the full-size networks.
"""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tts_engine.cosyvoice.kernels import conformer as conformer_kernels
from tts_engine.cosyvoice.kernels import sampling as sampling_kernels
from tts_engine.cosyvoice.kernels import transformer as kernels
from tts_engine.cosyvoice.kernels import vocoder as vocoder_kernels

TARGET = GPUTarget("cuda", 90, 32)


def compiled(
    kernel: Any, types: str, *, num_warps: int = 4, num_stages: int = 3, maxnreg: int | None = None, **constants: Any
) -> int:
    """Bytes of machine code. ``types``: of the arguments in order, ``-`` for None; constants follow by name."""
    names = [name for name in kernel.arg_names if name not in constants]
    signature = dict(zip(names, types.split(), strict=True))
    absent = {name: None for name, kind in signature.items() if kind == "-"}
    signature = {name: "constexpr" if kind == "-" else kind for name, kind in signature.items()}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=signature, constexprs={**constants, **absent})
    options = {"num_warps": num_warps, "num_stages": num_stages, "maxnreg": maxnreg}
    code = triton.compile(source, target=TARGET, options=options)
    return len(code.asm["cubin"])


def main() -> None:
    k: Any = kernels
    pages = "*i64 *i64 *i64"
    for x, y, past in (("*fp32", "*bf16", "*bf16 *i64 *i64"), ("*bf16", "-", "- - *i64")):
        print(compiled(k._unfold_three, f"{x} {y} {past} *bf16 i32 i32 i32", HAS_Y=y != "-", ROWS=16, BLOCK=64))
    for shift, residual, out in (("*fp32", "-", "*bf16"), ("-", "*bf16", "*fp32"), ("-", "-", "*bf16")):
        types = f"*bf16 *fp32 *fp32 {shift} {residual} {out} i32 i32 i32 i32 i32 fp32"
        print(compiled(k._norm_mish, types, HAS_SHIFT=shift != "-", HAS_RESIDUAL=residual != "-", BLOCK=256))
    for part, entry, block in (("*bf16", "*i64", 1024), ("-", "-", 256)):
        types = f"*fp32 {part} *fp32 {entry} *bf16 i32 i32 i32 i32 i32 i32 i32 fp32"
        print(compiled(k._gate_add_modulate, types, num_warps=8, HAS_Y=part != "-", BLOCK=block))
    sizes: dict[str, Any] = {"CHANNELS": 80, "JOINED": 320, "LINES": 8, "BLOCK": 128}
    print(compiled(k._guided_step, "*bf16 *fp32 *bf16 *fp32 *i64 i32 i32 fp32", **sizes))
    for heads, turn in ((16, "*fp32 *fp32"), (8, "- -")):
        tile = {"HEADS": heads, "HEAD": 64, "KEYS": 64}
        types = f"*bf16 *bf16 *bf16 {pages} {turn} *bf16 i32 i32"
        for rows in (32, 64):
            print(compiled(k._chunk_attention, types, PAGE=50, ROWS=rows, STAGES=2, maxnreg=128, **tile))
            print(compiled(k._chunk_attention, types, PAGE=50, ROWS=rows, STAGES=5, **tile))
        print(compiled(k._whole_attention, "*bf16 *i64 *bf16 i32", ROWS=64, STAGES=3, **tile))
    print(compiled(k._turn_first_head, "*bf16 *fp32 *fp32 i32", num_warps=1, WIDTH=1024, HEAD=64, ROWS=16))
    for past in ("*bf16 *i64", "- -"):
        types = f"*bf16 {past} *bf16 *bf16 *fp32 *fp32 i32 i32 i32"
        print(compiled(k._grouped_conv, types, GROUP=64, ROWS=64, ADD=True))
        print(compiled(k._grouped_conv, types, num_stages=5, GROUP=64, ROWS=16, ADD=True))
    print(compiled(k._keep_tail, "*bf16 *bf16 *i64 *i64 i32 i32 i32", num_warps=2, ROWS=32, BLOCK=64))
    types = "*bf16 *bf16 *i64 *i64 *fp32 *fp32 *bf16 i32 i32"
    sizes = {"HEADS": 14, "KV_HEADS": 2, "HALF": 32}
    print(compiled(k._decode_attention, types, num_stages=2, GROUP=16, BLOCK=256, **sizes))
    print(compiled(k._rotate_store, "*bf16 *bf16 *i64 *i64 *fp32 *fp32 i32 i32", num_warps=2, GROUP=32, **sizes))
    sizes = {"HEADS": 14, "KV_HEADS": 2, "HEAD": 64}
    for kind in ("*bf16", "*fp32"):
        types = f"{kind} {kind} *i64 {kind} i32 i32 i32"
        print(compiled(k._prompt_attention, types, ROWS=64, KEYS=64, STAGES=2, **sizes))
    print(compiled(k._copy_positions, "*bf16 *i64 *i64 *i64 i32 i32", KV_HEADS=2, HEAD=64, BLOCK=2048))
    sampling()
    conformer()
    vocoder()


def sampling() -> None:
    s: Any = sampling_kernels
    sizes: dict[str, Any] = {"TOP_P": 0.8, "TOP_K": 25, "PLACES": 32, "WINDOW": 10, "BACK": 16, "BLOCK": 8192}
    types = "*bf16 *i64 *i64 *i64 *i64 *i64 *i64 *i64 *i64 *i64 i32 i32 i32 i32 i32 i32"
    print(compiled(s._sample, types, num_warps=8, ADVANCE=1, **sizes))
    print(compiled(s._leave_only_drawn, "*fp32 *i64 *i64 *i64 *i1 *i64 i32 i32 i32", num_warps=8, **sizes))


def conformer() -> None:
    c: Any = conformer_kernels  # float32 is compiled by `make test-gpu` only, since the engine computes in bfloat16
    for page, rows, keys in ((25, 32, 32), (50, 32, 64), (50, 64, 64)):
        types = "*bf16 *bf16 *bf16 *bf16 *fp32 *i64 *i64 *i64 *bf16 i32 i32 i32"
        tile = {"HEADS": 8, "HEAD": 64, "PAGE": page, "ROWS": rows, "KEYS": keys, "STAGES": 3}
        print(compiled(c._chunk_attention, types, **tile))
    types = "*bf16 *bf16 *fp32 *i64 *bf16 i32 i32"
    print(compiled(c._whole_attention, types, HEADS=8, HEAD=64, ROWS=64, KEYS=64, STAGES=2))
    print(compiled(c._norm_look_ahead, "*bf16 *fp32 *fp32 *i64 *bf16 *fp32 i32 i32 fp32", TAPS=4, BLOCK=512))


def vocoder() -> None:
    v: Any = vocoder_kernels
    for alpha, around in (("*fp32", "*fp16 *i64 -"), ("-", "*fp16 *i64 -"), ("*fp32", "- - *i64")):
        types = f"*fp32 {alpha} {around} *fp16 i32 i32 i32 fp32"
        print(compiled(v._activate, types, PAST=64, ROWS=32, BLOCK=64))
    past = "*fp16 *fp16 *fp32 *i64 *i64 -"  # what is put in front of the next convolution's input
    zeros = "*fp16 - *fp32 - - *i64"
    for rows, n, c_in, c_out, residual, out, tail, then, add in (
        (1, 54, 80, 512, "-", "-", "-", "*fp16 *fp16 - *i64 *i64 -", False),
        (8, 54, 512, 2048, "-", "*fp32", "*fp16", "- - - *i64 *i64 -", False),
        (1, 432, 480, 256, "-", "*fp32", "-", past, False),
        (1, 432, 256, 256, "-", "-", "*fp16", past, False),
        (8, 2160, 128, 128, "*fp32", "*fp32", "*fp16", past, False),
        (8, 6481, 64, 64, "*fp32", "*fp32", "*fp16", "*fp16 *fp16 - *i64 *i64 -", True),
        (8, 6481, 64, 32, "-", "*fp32", "*fp16", "- - - *i64 *i64 -", False),
        (8, 58, 512, 2048, "-", "*fp32", "-", "- - - - - *i64", False),
        (1, 464, 256, 256, "-", "-", "-", zeros, False),
        (8, 6961, 64, 64, "*fp32", "*fp32", "-", zeros, True),
    ):
        tile = v.choose_tile(rows, n, c_in, c_out)
        types = f"*fp16 *fp16 *fp32 {residual} {out} {tail} {then}{7 * ' i32'} fp32 fp32"
        sizes = {"POSITIONS": tile.positions, "OUTPUTS": tile.outputs, "INPUTS": tile.inputs}
        options = {"num_warps": tile.warps, "num_stages": tile.stages}
        print(compiled(v._convolve, types, C_IN=c_in, C_OUT=c_out, ADD=add, **sizes, **options))


if __name__ == "__main__":
    main()
