"""`lakemark doctor`: who is asked, and what is said of the answers."""
