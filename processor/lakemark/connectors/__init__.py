"""The connector beside lakemark, and what databases say of their tables."""
