"""A part of an address that may be anything: names hold slashes and line ends, too."""

from __future__ import annotations

from starlette.convertors import Convertor, register_url_convertor

__all__ = ["ANY_ASSET", "ANY_NAME", "ANY_QUEUE"]

ANY_NAME = "{project:any_name}"
ANY_ASSET = "{asset:any_name}"
ANY_QUEUE = "{queue:any_name}"


class _AnyName(Convertor[str]):
    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any_name", _AnyName())
