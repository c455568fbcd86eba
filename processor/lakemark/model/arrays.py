"""Columns of Arrow tables as one array. Pure."""

import pyarrow as pa


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column's chunks as one array, which may be a slice; not copied if it has only one.

    Structs, too, which `combine_chunks` leaves chunked in some versions.
    """
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
