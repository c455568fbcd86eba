"""The words of all others: values without effects."""
