"""Row images in one buffer, and what both ways say of them."""

import numpy as np

from lakemark.converters.json.fast_path import typed
from lakemark.converters.json.rows import decode_rows


def placed(images):
    """The images' bytes between others, and where they stand."""
    between = b'},{"'
    data = between + between.join(images) + between
    sizes = np.array([len(image) for image in images], np.int64)
    begins = np.cumsum(sizes + len(between)) - sizes
    array = np.frombuffer(data, np.uint8)
    return array, np.column_stack([begins, begins + sizes])


def assert_same_or_left(images, schema, modes):
    """What `typed` says; it is what `decode_rows` does, which then has nothing to add."""
    quick = typed(*placed(images), schema, modes)
    general = decode_rows(images, schema, modes, partial=range(len(images)))
    if quick is not None:
        columns, clamped = quick
        columns.validate(full=True)
        assert columns.type == general.columns.type
        assert repr(columns.to_pylist()) == repr(general.columns.to_pylist())
        assert clamped == general.clamped
        assert (general.bad, general.unknown, any(general.unavailable)) == ([], set(), False)
    return quick
