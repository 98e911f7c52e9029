"""The official schema of pprof profiles, for Google's own protobuf runtime to decode with.

Names, numbers and types of all fields are those of ``proto/profile.proto`` in the repository of the pprof project
(package ``perftools.profiles``, proto3). No maintained package on PyPI has that file compiled. A test compares this
schema with a profile that ``go tool pprof`` writes.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "perftools.profiles"
_SCALARS = {"int64": 3, "uint64": 4, "bool": 8, "string": 9}  # FieldDescriptorProto.Type
_MESSAGE = 11

# Message → field → (number, type); a type that ends with * is repeated.
FIELDS: dict[str, dict[str, tuple[int, str]]] = {
    "Profile": {
        "sample_type": (1, "ValueType*"),
        "sample": (2, "Sample*"),
        "mapping": (3, "Mapping*"),
        "location": (4, "Location*"),
        "function": (5, "Function*"),
        "string_table": (6, "string*"),
        "drop_frames": (7, "int64"),
        "keep_frames": (8, "int64"),
        "time_nanos": (9, "int64"),
        "duration_nanos": (10, "int64"),
        "period_type": (11, "ValueType"),
        "period": (12, "int64"),
        "comment": (13, "int64*"),
        "default_sample_type": (14, "int64"),
    },
    "ValueType": {"type": (1, "int64"), "unit": (2, "int64")},
    "Sample": {"location_id": (1, "uint64*"), "value": (2, "int64*"), "label": (3, "Label*")},
    "Label": {"key": (1, "int64"), "str": (2, "int64"), "num": (3, "int64"), "num_unit": (4, "int64")},
    "Mapping": {
        "id": (1, "uint64"),
        "memory_start": (2, "uint64"),
        "memory_limit": (3, "uint64"),
        "file_offset": (4, "uint64"),
        "filename": (5, "int64"),
        "build_id": (6, "int64"),
        "has_functions": (7, "bool"),
        "has_filenames": (8, "bool"),
        "has_line_numbers": (9, "bool"),
        "has_inline_frames": (10, "bool"),
    },
    "Location": {
        "id": (1, "uint64"),
        "mapping_id": (2, "uint64"),
        "address": (3, "uint64"),
        "line": (4, "Line*"),
        "is_folded": (5, "bool"),
    },
    "Line": {"function_id": (1, "uint64"), "line": (2, "int64")},
    "Function": {
        "id": (1, "uint64"),
        "name": (2, "int64"),
        "system_name": (3, "int64"),
        "filename": (4, "int64"),
        "start_line": (5, "int64"),
    },
}


def _message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            bare = kind.rstrip("*")
            added = message.field.add(name=field, number=number, label=3 if kind.endswith("*") else 1)
            added.type = _SCALARS.get(bare, _MESSAGE)
            if bare not in _SCALARS:
                added.type_name = f".{_PACKAGE}.{bare}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Profile"))


ProfileMessage = _message_class()


def decode(message: bytes) -> Any:
    """Decode a message; fail on fields that the schema does not have."""
    decoded = ProfileMessage.FromString(message)
    known = decoded.SerializeToString(deterministic=True)
    decoded.DiscardUnknownFields()
    assert decoded.SerializeToString(deterministic=True) == known
    return decoded


def function_names(profile: Any) -> set[str]:
    """Return the names of all functions in a decoded profile."""
    return {profile.string_table[function.name] for function in profile.function}
