"""The parts of `examples/demo.py`: the month end of a small shop, whose web app gets many things twice."""
