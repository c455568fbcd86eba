"""librdkafka ends a process that asks for the cluster while a broker knows of none."""

import subprocess
import sys

import pytest
from confluent_kafka.admin import AdminClient

from lakemark.errors import DependencyError
from lakemark.kafka.brokers import Cluster
from tests.kit.connector_settings import config
from tests.kit.empty_broker import empty_broker

CALLS = {
    "topics": lambda cluster: cluster.topics(".*"),
    "partition_counts": lambda cluster: cluster.partition_counts(["a", "b"]),
    "topic_ids": lambda cluster: cluster.topic_ids(["a", "b"]),
    "permitted": lambda cluster: cluster.permitted(["a", "b"]),
    "end_offsets": lambda cluster: cluster.end_offsets(["a"]),
    "ensure_topics": lambda cluster: cluster.ensure_topics(),
    "brokers": lambda cluster: cluster.brokers(),
}


@pytest.fixture
def broker():
    with empty_broker() as address:
        yield address


@pytest.mark.parametrize("call", CALLS)
def test_a_broker_that_knows_of_no_broker_is_away(broker, call):
    ours = config(kafka={"bootstrap_servers": broker, "timeout": "1s"})
    with Cluster(ours) as cluster, pytest.raises(DependencyError):
        CALLS[call](cluster)


def test_the_broker_of_these_tests_is_one_that_ends_a_process(broker):
    """If this one fails, librdkafka has mended it: `Cluster` need not go round it any more."""
    script = (
        f"import sys; from {AdminClient.__module__} import AdminClient;"
        "client = AdminClient({'bootstrap.servers': sys.argv[1]});"
        "client.describe_cluster().result(5)"
    )
    done = subprocess.run([sys.executable, "-c", script, broker], capture_output=True, check=False)
    assert done.returncode < 0
    assert b"rko_result" in done.stderr
