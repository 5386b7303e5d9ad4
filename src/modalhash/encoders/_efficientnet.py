"""EfficientNet-Lite0 as an ONNX graph made from its weights, up to the layer before the classes.

Mingxing Tan and Quoc V. Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019.
Lite0 leaves out squeeze-and-excitation and has ReLU6 for swish. What is constant is computed here, once: a batch
normalisation after a convolution is a factor and a summand of it.

=========================  =================================
input ``pixels``           uint8 ``(n, 224, 224, 3)``
output ``features``        float32 ``(n, 1280)`` of length 1
=========================  =================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from modalhash._imports import require
from modalhash._typing import Array

SIZE, FEATURES = 224, 1280
EPSILON = 1e-3
"""Of the batch normalisations."""
MEAN, SCALE = 127, 128
"""Of the pixels, as in training."""
OPSET, IR_VERSION = 17, 8
"""Of ONNX: old enough for every onnxruntime of the last years."""


class _BlockStage(NamedTuple):
    """Blocks in a row that differ in nothing but the step of the first one."""

    blocks: int
    kernel: int
    step: int


STAGES = [
    _BlockStage(1, 3, 1),
    _BlockStage(2, 3, 2),
    _BlockStage(2, 5, 2),
    _BlockStage(3, 3, 2),
    _BlockStage(3, 5, 1),
    _BlockStage(4, 5, 2),
    _BlockStage(1, 3, 1),
]
"""How many blocks, of which kernel and step. Numbers of channels are told by the shapes of the weights."""


def efficientnet_graph(weights: Mapping[str, Array]) -> bytes:
    """Return the network as an ONNX model, from tensors with the names that ``efficientnet-lite-pytorch`` gives."""
    graph = _Graph(weights)
    here = graph.normalised("pixels")
    here = graph.convolution(here, "_conv_stem", "_bn0", kernel=3, step=2)
    number = 0
    for stage in STAGES:
        for i in range(stage.blocks):
            here = graph.block(here, f"_blocks.{number}.", kernel=stage.kernel, step=stage.step if i == 0 else 1)
            number += 1
    here = graph.convolution(here, "_conv_head", "_bn1")
    graph.pooled(here, "features")
    return graph.to_bytes()


class _Graph:
    """Nodes and constants, as they come."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self._onnx = require("onnx", extra="photos", why="the encoder 'efficientnet-lite0'")
        self._weights = weights
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def normalised(self, pixels: str) -> str:
        """Channels first, and pixels as in training."""
        first = self._add("Transpose", [pixels], perm=[0, 3, 1, 2])
        numbers = self._add("Cast", [first], to=self._onnx.TensorProto.FLOAT)
        centred = self._add("Sub", [numbers, self._constant(np.float32(MEAN))])
        return self._add("Mul", [centred, self._constant(np.float32(1 / SCALE))])

    def block(self, inputs: str, at: str, *, kernel: int, step: int) -> str:
        """Mobile inverted bottleneck: more channels, a kernel per channel, fewer channels, added to what came."""
        here = inputs
        if f"{at}_expand_conv.weight" in self._weights:
            here = self.convolution(here, f"{at}_expand_conv", f"{at}_bn0")
        here = self.convolution(here, f"{at}_depthwise_conv", f"{at}_bn1", kernel=kernel, step=step, by_channel=True)
        here = self.convolution(here, f"{at}_project_conv", f"{at}_bn2", bounded=False)
        return self._add("Add", [here, inputs]) if step == 1 and self._keeps_channels(at) else here

    def _keeps_channels(self, at: str) -> bool:
        expand = self._weights.get(
            f"{at}_expand_conv.weight"
        )  # (out, in, 1, 1); one kernel per channel where there is none
        channels = len(self._weights[f"{at}_depthwise_conv.weight"]) if expand is None else expand.shape[1]
        return bool(channels == len(self._weights[f"{at}_project_conv.weight"]))

    def convolution(
        self,
        inputs: str,
        layer: str,
        normalisation: str,
        *,
        kernel: int = 1,
        step: int = 1,
        by_channel: bool = False,
        bounded: bool = True,
    ) -> str:
        """A convolution with its batch normalisation, and ReLU6 if ``bounded``. As many pixels as came, by step."""
        weight = self._weights[f"{layer}.weight"].astype(np.float64)
        gain, shift, mean, variance = (
            self._weights[f"{normalisation}.{name}"].astype(np.float64)
            for name in ("weight", "bias", "running_mean", "running_var")
        )
        factor = gain / np.sqrt(variance + EPSILON)
        out = self._add(
            "Conv",
            [
                inputs,
                self._constant((weight * factor[:, None, None, None]).astype(np.float32)),
                self._constant((shift - mean * factor).astype(np.float32)),
            ],
            kernel_shape=[kernel, kernel],
            strides=[step, step],
            group=len(weight) if by_channel else 1,
            auto_pad="SAME_UPPER",
        )
        if not bounded:
            return out
        return self._add("Clip", [out, self._constant(np.float32(0)), self._constant(np.float32(6))])

    def pooled(self, inputs: str, name: str) -> None:
        """The mean over the pixels, of length 1."""
        means = self._add("Flatten", [self._add("GlobalAveragePool", [inputs])])
        self._nodes.append(self._onnx.helper.make_node("LpNormalization", [means], [name], axis=1, p=2))

    def to_bytes(self) -> bytes:
        """Return the file."""
        helper, types = self._onnx.helper, self._onnx.TensorProto
        graph = helper.make_graph(
            self._nodes,
            "efficientnet-lite0",
            [helper.make_tensor_value_info("pixels", types.UINT8, ["n", SIZE, SIZE, 3])],
            [helper.make_tensor_value_info("features", types.FLOAT, ["n", FEATURES])],
            self._constants,
        )
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
        return bytes(model.SerializeToString())

    def _add(self, operation: str, inputs: list[str], **attributes: Any) -> str:
        name = f"v{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operation, inputs, [name], **attributes))
        return name

    def _constant(self, values: Any) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(np.asarray(values), name))
        return name
