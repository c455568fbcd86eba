"""`lakemark prepare`: scripts after which connector and lakemark have all that they need."""
