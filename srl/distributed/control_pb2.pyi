from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_UNSPECIFIED: _ClassVar[State]
    CREATED: _ClassVar[State]
    CONFIGURED: _ClassVar[State]
    RUNNING: _ClassVar[State]
    PAUSED: _ClassVar[State]
    DRAINING: _ClassVar[State]
    STOPPED: _ClassVar[State]
    FAILED: _ClassVar[State]

class CommandKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMMAND_KIND_UNSPECIFIED: _ClassVar[CommandKind]
    START: _ClassVar[CommandKind]
    PAUSE: _ClassVar[CommandKind]
    DRAIN: _ClassVar[CommandKind]
    STOP: _ClassVar[CommandKind]
    DUMP_STACKS: _ClassVar[CommandKind]
STATE_UNSPECIFIED: State
CREATED: State
CONFIGURED: State
RUNNING: State
PAUSED: State
DRAINING: State
STOPPED: State
FAILED: State
COMMAND_KIND_UNSPECIFIED: CommandKind
START: CommandKind
PAUSE: CommandKind
DRAIN: CommandKind
STOP: CommandKind
DUMP_STACKS: CommandKind

class FromWorker(_message.Message):
    __slots__ = ("worker", "incarnation", "sequence", "register", "endpoints", "state", "heartbeat", "finished", "failure")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: int
    sequence: int
    register: Register
    endpoints: Endpoints
    state: StateChange
    heartbeat: Heartbeat
    finished: Finished
    failure: Failure
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., register: _Optional[_Union[Register, _Mapping]] = ..., endpoints: _Optional[_Union[Endpoints, _Mapping]] = ..., state: _Optional[_Union[StateChange, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("protocol", "trial", "pid", "host", "state")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    trial: str
    pid: int
    host: str
    state: State
    def __init__(self, protocol: _Optional[int] = ..., trial: _Optional[str] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., state: _Optional[_Union[State, str]] = ...) -> None: ...

class Endpoints(_message.Message):
    __slots__ = ("addresses",)
    class AddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.ScalarMap[str, str]
    def __init__(self, addresses: _Optional[_Mapping[str, str]] = ...) -> None: ...

class StateChange(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: State
    def __init__(self, state: _Optional[_Union[State, str]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("silent_seconds", "doing", "report_json")
    SILENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    REPORT_JSON_FIELD_NUMBER: _ClassVar[int]
    silent_seconds: float
    doing: str
    report_json: bytes
    def __init__(self, silent_seconds: _Optional[float] = ..., doing: _Optional[str] = ..., report_json: _Optional[bytes] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("error", "doing", "host", "traceback")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    error: str
    doing: str
    host: str
    traceback: str
    def __init__(self, error: _Optional[str] = ..., doing: _Optional[str] = ..., host: _Optional[str] = ..., traceback: _Optional[str] = ...) -> None: ...

class ToWorker(_message.Message):
    __slots__ = ("worker", "assignment", "command", "acknowledge", "refusal", "gone")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    assignment: Assignment
    command: Command
    acknowledge: Acknowledge
    refusal: Refusal
    gone: WorkerGone
    def __init__(self, worker: _Optional[str] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., command: _Optional[_Union[Command, _Mapping]] = ..., acknowledge: _Optional[_Union[Acknowledge, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., gone: _Optional[_Union[WorkerGone, _Mapping]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("assignment_json",)
    ASSIGNMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    assignment_json: bytes
    def __init__(self, assignment_json: _Optional[bytes] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("kind",)
    KIND_FIELD_NUMBER: _ClassVar[int]
    kind: CommandKind
    def __init__(self, kind: _Optional[_Union[CommandKind, str]] = ...) -> None: ...

class WorkerGone(_message.Message):
    __slots__ = ("group", "kind", "index", "incarnation")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    group: str
    kind: str
    index: int
    incarnation: int
    def __init__(self, group: _Optional[str] = ..., kind: _Optional[str] = ..., index: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Acknowledge(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
