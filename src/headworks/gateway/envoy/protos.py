"""Classes of protobuf messages, made of what their `.proto` files state of the fields that are used here.

No package carries KEDA's scaler, and the one with Envoy's interfaces brings files of OpenTelemetry along, older than those that
`headworks[otel]` needs, in the same place. A field that is not named here is skipped, as protobuf has it.

Made in a pool of their own, so that whoever has the same names in protobuf's pool of all is not disturbed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import struct_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

Field = tuple[str, int, str]
"""Name, number and kind: one of `KINDS`, a message of the same file or, with a dot before it, of another; `[]` behind it:
repeated; `{}`: by names."""
KINDS = {
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "enum": FieldDescriptorProto.TYPE_INT32,  # the same on the wire
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}
STRUCT, UINT64 = ".google.protobuf.Struct", ".google.protobuf.UInt64Value"
BORROWED = (struct_pb2, wrappers_pb2)


def made(
    package: str, messages: Mapping[str, tuple[Field, ...]], choices: Mapping[str, tuple[str, tuple[str, ...]]] | None = None
) -> dict[str, Any]:
    """The classes of these messages by their names. `choices`: of a message, the name of its `oneof` and the fields in it."""
    pool = DescriptorPool()
    file = FileDescriptorProto(name=f"headworks/{package}.proto", package=package, syntax="proto3")
    for module in BORROWED:
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        file.dependency.append(module.DESCRIPTOR.name)
    for name, fields in messages.items():
        described = file.message_type.add(name=name)
        oneof, within = (choices or {}).get(name, ("", ()))
        if oneof:
            described.oneof_decl.add(name=oneof)
        for field, number, kind in fields:
            added = _add(described, package, field, number, kind)
            if field in within:
                added.oneof_index = 0
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


def _add(described: DescriptorProto, package: str, field: str, number: int, kind: str) -> FieldDescriptorProto:
    single = kind.removesuffix("[]").removesuffix("{}")
    repeated = FieldDescriptorProto.LABEL_REPEATED if kind != single else FieldDescriptorProto.LABEL_OPTIONAL
    if single in KINDS:
        return described.field.add(name=field, number=number, type=KINDS[single], label=repeated)
    type_name = single if single.startswith(".") else f".{package}.{single}"
    if kind.endswith("{}"):
        entry = described.nested_type.add(name="".join(word.title() for word in field.split("_")) + "Entry")
        entry.options.map_entry = True
        _add(entry, package, "key", 1, "string")
        _add(entry, package, "value", 2, type_name)
        type_name = f".{package}.{described.name}.{entry.name}"
    return described.field.add(
        name=field, number=number, type=FieldDescriptorProto.TYPE_MESSAGE, type_name=type_name, label=repeated
    )
