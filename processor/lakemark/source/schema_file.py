"""placeholder"""


def read_schema_file(p):
    pass
