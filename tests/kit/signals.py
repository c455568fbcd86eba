"""Signals as records of the topic, and what is read from them."""

import json

from lakemark.snapshot.signals import read

EXECUTE = {"data-collections": ["public.orders"]}
TABLES = ["public.orders", "public.orders_2024", "public.Orders", "sales.orders", "public.a$b"]


def signal(kind, data, **more):
    return {"id": "s1", "type": kind, "data": data, **more}


def bytes_of(message):
    return message if isinstance(message, bytes | None) else json.dumps(message).encode()


def answer(message, key=b"shop"):
    return read(key, bytes_of(message), pipeline="shop", unnamed="signals-0-17")


def execute(**data):
    return answer(signal("execute-snapshot", {**EXECUTE, **data}))
