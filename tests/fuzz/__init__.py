"""Random networks with random dead units."""
