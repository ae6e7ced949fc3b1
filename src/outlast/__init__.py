"""Outlast: durable execution for Python. Public names only; `App` is where to begin."""

from outlast import sync
from outlast.app import App
from outlast.authoring.asking import query, update
from outlast.authoring.compensation import compensate
from outlast.authoring.continuing import continue_as_new
from outlast.authoring.flow import Flow, FlowMember, Join, all_of, any_of, quorum
from outlast.authoring.growing import Growth, flow
from outlast.authoring.inside import Current, current, emit, now, progress, random, uuid4
from outlast.authoring.patches import patched
from outlast.authoring.retry import Retry
from outlast.authoring.transaction import connection
from outlast.authoring.waiting import Deferred, deferred, interrupted, race, receive, sleep, sleep_until
from outlast.client.flow_handle import FlowHandle, SyncFlowHandle
from outlast.client.flow_info import FlowCancel, FlowGraph, FlowInfo, MemberInfo
from outlast.client.handle import Handle, SyncHandle
from outlast.client.info import AttemptInfo, CompletionInfo, FrameInfo, Info, JournalInfo, ProgressInfo
from outlast.codec.templates import UpstreamFailure
from outlast.codec.values import CodecHook
from outlast.errors import (
    CodecError,
    CorruptState,
    DeferredRejected,
    DuplicateRegistration,
    ExecutionCancelled,
    ExecutionConflict,
    ExecutionEnded,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionNotFound,
    ExecutionRefused,
    ExecutionSkipped,
    FlowCancelled,
    FlowConflict,
    FlowFailed,
    FlowNotFound,
    FlowRefused,
    InvalidArguments,
    InvalidConfig,
    InvalidDuration,
    InvalidFlow,
    InvalidInput,
    InvalidName,
    InvalidToken,
    LeaseLost,
    LimitExceeded,
    NonDeterminism,
    OutlastError,
    StatementRefused,
    StoreError,
    StoreUnavailable,
    TokenExpired,
    TransactionUnsupported,
    UnknownWorkflow,
    UpdateRefused,
    WrongConnection,
    WrongPlace,
)
from outlast.model.duration import Duration
from outlast.model.status import Status

__version__ = "0.1.0.dev0"

__all__ = [
    # writing durable functions
    "App",
    "CodecHook",
    "Duration",
    "Retry",
    # flows
    "Flow",
    "FlowCancel",
    "FlowGraph",
    "FlowHandle",
    "FlowInfo",
    "FlowMember",
    "Growth",
    "Join",
    "MemberInfo",
    "SyncFlowHandle",
    "UpstreamFailure",
    "all_of",
    "any_of",
    "quorum",
    # inside of workflows and steps
    "Current",
    "compensate",
    "connection",
    "current",
    "emit",
    "now",
    "progress",
    "random",
    "uuid4",
    # in workflows
    "Deferred",
    "continue_as_new",
    "deferred",
    "flow",
    "interrupted",
    "patched",
    "query",
    "race",
    "receive",
    "sleep",
    "sleep_until",
    "sync",
    "update",
    # looking at executions
    "AttemptInfo",
    "CompletionInfo",
    "FrameInfo",
    "Handle",
    "Info",
    "JournalInfo",
    "ProgressInfo",
    "Status",
    "SyncHandle",
    # errors
    "CodecError",
    "CorruptState",
    "DeferredRejected",
    "DuplicateRegistration",
    "ExecutionCancelled",
    "ExecutionConflict",
    "ExecutionEnded",
    "ExecutionExpired",
    "ExecutionFailed",
    "ExecutionNotFound",
    "ExecutionRefused",
    "ExecutionSkipped",
    "FlowCancelled",
    "FlowConflict",
    "FlowFailed",
    "FlowNotFound",
    "FlowRefused",
    "InvalidArguments",
    "InvalidConfig",
    "InvalidDuration",
    "InvalidFlow",
    "InvalidInput",
    "InvalidName",
    "InvalidToken",
    "LeaseLost",
    "LimitExceeded",
    "NonDeterminism",
    "OutlastError",
    "StatementRefused",
    "StoreError",
    "StoreUnavailable",
    "TransactionUnsupported",
    "TokenExpired",
    "UnknownWorkflow",
    "UpdateRefused",
    "WrongConnection",
    "WrongPlace",
]
