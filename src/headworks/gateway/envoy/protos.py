"""Two small interfaces that no package carries, as their `.proto` files state them: gRPC's health check, KEDA's scaler.

Made in a pool of their own, so that whoever has the same names in protobuf's pool of all is not disturbed.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

Field = tuple[str, int, str]
"""Name, number and kind: `string`, `bool`, `int64`, `double`, a message of the same file; `[]` behind it: repeated."""
KINDS = {
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "string": FieldDescriptorProto.TYPE_STRING,
}


def made(package: str, messages: dict[str, tuple[Field, ...]]) -> dict[str, Any]:
    """The classes of these messages by their names."""
    file = FileDescriptorProto(name=f"headworks/{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        described = file.message_type.add(name=name)
        for field, number, kind in fields:
            single = kind.removesuffix("[]")
            is_message = single not in KINDS
            described.field.add(
                name=field,
                number=number,
                type=FieldDescriptorProto.TYPE_MESSAGE if is_message else KINDS[single],
                type_name=f".{package}.{single}" if is_message else None,
                label=FieldDescriptorProto.LABEL_REPEATED if kind != single else FieldDescriptorProto.LABEL_OPTIONAL,
            )
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
