"""The connector beside lakemark, and the source database: its tables, its catalog, its log."""
