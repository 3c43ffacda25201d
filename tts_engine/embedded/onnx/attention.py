"""Replaces each attention layer, which an exporter wrote as thirty nodes, by two nodes.

PyTorch exports ``MultiheadAttention`` as slices, reshapes and transposes whose shapes are computed at every run.
onnxruntime has one operator for the whole (``com.microsoft.MultiHeadAttention``). With it the embedded voice's prosody
takes an eighth less time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tts_engine.embedded.onnx.messages import messages

_DOMAIN = "com.microsoft"
_INT = 2
"""AttributeProto.AttributeType."""


def join_attention(model: bytes, *, heads: int) -> bytes:
    """Return the model with every attention layer as a ``Split`` and a ``MultiHeadAttention``.

    Nodes that are then unused stay in the model; ``cut`` drops them.

    Args:
        model: a serialized ONNX model in which every softmax belongs to a self-attention without a mask, on a joint
            projection ``(batch, length, 3 x channels)`` to queries, keys and values.
        heads: number of heads of every layer.

    Raises:
        ValueError: a softmax is not part of such a layer.
    """
    types = messages()
    whole = types["Model"].FromString(model)
    nodes = whole.graph.node
    maker = {name: node for node in nodes for name in node.output}
    users: dict[str, list[Any]] = {}
    for node in nodes:
        for name in node.input:
            users.setdefault(name, []).append(node)

    def before(node: Any, op_type: str) -> Any:
        """Return the nearest node of a type on the way back along first inputs."""
        at = node
        while at.input and (at := maker.get(at.input[0])) is not None:
            if at.op_type == op_type:
                return at
        raise ValueError(f"softmax {node.name!r} follows from no {op_type}, expected self-attention")

    def after(node: Any, op_type: str) -> Any:
        """Return the only node that uses the output of ``node``. It must be of a type."""
        found = users.get(node.output[0], [])
        if [other.op_type for other in found] != [op_type]:
            raise ValueError(f"{node.name!r} is followed by {[n.op_type for n in found]}, expected one {op_type}")
        return found[0]

    joined: dict[str, list[Any]] = {}
    for softmax in nodes:
        if softmax.op_type == "Softmax":
            projection = before(before(softmax, "MatMul"), "Slice").input[0]
            last = after(after(after(softmax, "MatMul"), "Transpose"), "Reshape")
            parts = [f"{softmax.name}/{part}" for part in ("query", "key", "value")]
            joined[last.output[0]] = [
                _node("Split", [projection], parts, axis=2),
                _node("MultiHeadAttention", parts, last.output, domain=_DOMAIN, num_heads=heads),
            ]
    kept = [new for node in nodes for new in joined.get(node.output[0], [node])]
    del nodes[:]
    nodes.extend(kept)
    whole.opset_import.append(types["OperatorSet"](domain=_DOMAIN, version=1))
    return bytes(whole.SerializeToString())


def _node(op_type: str, inputs: Iterable[str], outputs: Iterable[str], *, domain: str = "", **attributes: int) -> Any:
    types = messages()
    values = [types["Attribute"](name=name, i=value, type=_INT) for name, value in attributes.items()]
    return types["Node"](op_type=op_type, input=inputs, output=outputs, domain=domain, attribute=values)
