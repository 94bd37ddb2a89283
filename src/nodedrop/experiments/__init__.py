"""The paper end to end: networks, data sets, recipes, and runs of them."""
