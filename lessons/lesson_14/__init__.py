"""What lesson 14 shows: the ring, two timelines, the arithmetic of wires, its exercises."""
