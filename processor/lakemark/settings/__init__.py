"""The settings and their reading: layers, units, mistakes."""
