"""MySQL and MariaDB: all that is peculiar to them."""
