"""Whose topic it is, where prefixes begin with each other and transforms rename topics."""

import pickle

import pytest

from lakemark.model.topic_owners import ONE_OWNER, OwnTopics, TopicOwners

OWNERS = TopicOwners.of(
    [
        OwnTopics("shop", "shop.", r"shop\.[^.]+\..+"),
        OwnTopics("shop.eu", "shop.eu.", r"shop\.eu\.[^.]+\..+|routed"),
        OwnTopics("crm", "crm.", r"all-.*"),
    ]
)


@pytest.mark.parametrize(
    ("topic", "owner"),
    [
        ("shop.public.orders", "shop"),
        ("shop.eu.public.orders", "shop.eu"),
        ("shop.eu.orders", "shop"),  # a schema named eu: the other one's topics have three parts
        ("routed", "shop.eu"),
        ("all-orders", "crm"),
    ],
)
def test_the_longest_prefix_counts_then_who_reads_it(topic, owner):
    assert OWNERS(topic) == owner
    assert pickle.loads(pickle.dumps(OWNERS))(topic) == owner


def test_the_order_of_the_configuration_changes_nothing():
    assert TopicOwners.of(reversed(OWNERS.several)) == OWNERS


def test_a_single_connector_has_all():
    assert ONE_OWNER("anything") == ""
