"""What a batch leaves behind, and what is asked of it before the next."""
