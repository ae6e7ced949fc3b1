"""The conformance suite on one Valkey server."""

from __future__ import annotations

import pytest

from outlast.testing.conformance.claim import (
    ClaimAgainConformance,
    ClaimGateConformance,
    ClaimMatchConformance,
    ClaimOrderConformance,
    ClaimRaceConformance,
    ClaimRecordConformance,
)
from outlast.testing.conformance.commit import (
    CommitConformance,
    CommitLimitConformance,
    VerdictConformance,
    WriteConformance,
)
from outlast.testing.conformance.crashes import CrashConformance
from outlast.testing.conformance.doorbell import DoorbellConformance, DoorbellLossConformance
from outlast.testing.conformance.due import DueConformance
from outlast.testing.conformance.families import FamilyConformance
from outlast.testing.conformance.find import FindConformance, FindPagingConformance
from outlast.testing.conformance.guards import GuardConformance
from outlast.testing.conformance.harness import Conformance, parts
from outlast.testing.conformance.leases import (
    RenewConformance,
    TakeoverConformance,
    TimeoutConformance,
    ZombieConformance,
)
from outlast.testing.conformance.life import LifeConformance
from outlast.testing.conformance.lost_replies import LostReplyConformance
from outlast.testing.conformance.purge import PurgeConformance
from outlast.testing.conformance.races import RaceConformance
from outlast.testing.conformance.reading import LoadConformance, ScanConformance
from outlast.testing.conformance.reconcilers import ReconcilerConformance
from outlast.testing.conformance.streams import CompletionConformance, FrameConformance
from outlast.testing.conformance.timekeeping import ClockConformance, TimeConformance
from tests.conformance.valkey_harness import ValkeyHarness, the_server


@pytest.fixture
def harness() -> ValkeyHarness:
    server = the_server()
    return ValkeyHarness([server], server.url)


class TestGuards(GuardConformance): ...


class TestClaimOrder(ClaimOrderConformance): ...


class TestClaimMatch(ClaimMatchConformance): ...


class TestClaimGate(ClaimGateConformance): ...


class TestClaimRecord(ClaimRecordConformance): ...


class TestClaimAgain(ClaimAgainConformance): ...


class TestClaimRace(ClaimRaceConformance): ...


class TestWrite(WriteConformance): ...


class TestCommit(CommitConformance): ...


class TestVerdict(VerdictConformance): ...


class TestCommitLimit(CommitLimitConformance): ...


class TestCrash(CrashConformance): ...


class TestDoorbell(DoorbellConformance): ...


class TestDoorbellLoss(DoorbellLossConformance): ...


class TestDue(DueConformance): ...


class TestFamily(FamilyConformance): ...


class TestFind(FindConformance): ...


class TestFindPaging(FindPagingConformance): ...


class TestRenew(RenewConformance): ...


class TestTakeover(TakeoverConformance): ...


class TestZombie(ZombieConformance): ...


class TestTimeout(TimeoutConformance): ...


class TestLife(LifeConformance): ...


class TestLostReply(LostReplyConformance): ...


class TestPurge(PurgeConformance): ...


class TestRace(RaceConformance): ...


class TestLoad(LoadConformance): ...


class TestScan(ScanConformance): ...


class TestReconciler(ReconcilerConformance): ...


class TestFrame(FrameConformance): ...


class TestCompletion(CompletionConformance): ...


class TestTime(TimeConformance): ...


class TestClock(ClockConformance): ...


def test_every_part_of_the_suite_runs_here():
    classes = [cls for cls in globals().values() if isinstance(cls, type) and cls.__name__.startswith("Test")]
    assert {base for cls in classes for base in cls.__bases__ if issubclass(base, Conformance)} == parts()
