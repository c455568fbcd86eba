"""What brokers say against creating topics: some of it goes away by itself."""

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from lakemark.errors import DependencyError
from lakemark.kafka.brokers import Cluster
from lakemark.settings.layers import InvalidConfig
from tests.kit.connector_settings import config

FENCED = (
    "Unable to replicate the partition 1 time(s): All brokers are currently fenced, or have all "
    "their log directories cordoned."
)
FEW = "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be"


class Refusing:
    """An admin client whose brokers create no topic."""

    def __init__(self, reason):
        self.reason = reason

    def create_topics(self, new, **_):
        refused = Future()
        error = KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, self.reason)
        refused.set_exception(KafkaException(error))
        return {topic.topic: refused for topic in new}


@pytest.mark.parametrize(("reason", "raised"), [(FENCED, DependencyError), (FEW, InvalidConfig)])
def test_brokers_that_are_starting_are_waited_for(reason, raised):
    cluster = Cluster(config())
    cluster._met, cluster._admin = True, Refusing(reason)
    with pytest.raises(raised):
        cluster._create({"shop.control": (1, {})})
