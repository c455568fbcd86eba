"""Who is known to be dead, and who is not."""

import os
import subprocess
import sys
from dataclasses import dataclass

import msgspec
import pytest

from lakemark.state import ownership
from lakemark.state.ownership import Owner, this_process


@dataclass
class Process:
    """A process that lives until the end of the test, or is ended before."""

    process: subprocess.Popen
    owner: Owner

    def end(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def other():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    begun = ownership._begun(process.pid)
    yield Process(process, msgspec.structs.replace(this_process(), pid=process.pid, begun=begun))
    process.kill()
    process.wait()


def test_a_process_that_runs_is_not_dead(other):
    assert not this_process().is_dead()
    assert not other.owner.is_dead()


def test_one_that_ended_is(other):
    other.end()
    assert other.owner.is_dead()


def test_one_that_was_killed_and_that_nobody_has_waited_for_is(other):
    other.process.kill()
    os.waitid(os.P_PID, other.process.pid, os.WEXITED | os.WNOWAIT)
    assert other.owner.is_dead()


def test_the_number_of_a_dead_one_may_be_anothers(other):
    assert msgspec.structs.replace(other.owner, begun="1").is_dead()


def test_of_other_machines_only_the_brokers_know(other):
    other.end()
    assert not msgspec.structs.replace(other.owner, host="elsewhere/boot").is_dead()


def test_of_a_container_that_shares_the_machines_name_only_the_brokers_know():
    """Its first process has a number that is another one's here."""
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    said = "from lakemark.state import ownership as o; print(o.encode(o.this_process()).decode())"
    if subprocess.run([*apart, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine gives nobody a space of process numbers of their own")
    told = subprocess.run([*apart, sys.executable, "-c", said], check=True, capture_output=True)
    there, here = ownership.decode(told.stdout), this_process()
    assert there.host.split("/")[:2] == here.host.split("/")[:2]
    assert there.begun != ownership._begun(there.pid)
    assert not there.is_dead()


def test_every_start_is_an_owner_of_its_own():
    one, two = this_process(), this_process()
    assert one.token != two.token
    assert ownership.decode(ownership.encode(one)) == one
    assert ownership.decode(None) is None
    error = ownership.superseded(one)
    assert error.code == ownership.SUPERSEDED
    assert str(one.pid) in error.message
