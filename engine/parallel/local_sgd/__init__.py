"""Local SGD: DiLoCo, CO2 and their rounds."""
