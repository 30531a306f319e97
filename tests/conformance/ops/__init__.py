"""Every operation of a scenario, in terms of the core."""

from tests.conformance.ops import changing, consuming, flows, producing, reading, ruling
from tests.conformance.ops.registry import OPS, Op

__all__ = ["OPS", "Op", "changing", "consuming", "flows", "producing", "reading", "ruling"]
