"""How settings are read: layers, units, mistakes."""
