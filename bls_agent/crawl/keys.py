"""Builds the keys of a crawl's project and spider, and checks and parses keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol, cast

from bls_agent.core.errors import ConfigurationError
from bls_agent.core.keys import (
    CRAWL_KEY_FAULT,
    KEYS,
    Contract,
    key_beside,
    name_of,
    place_beside,
)

_ROWS: Final = [name for name, row in KEYS.items() if row.contract is Contract.CRAWL]

# Key that only this package uses → the keys of the protocol whose slot it must share.
_BESIDE: Final = {
    "crawl_leases": ("crawl_requests",),
    "crawl_delayed": ("crawl_requests",),
    "crawl_counters": ("crawl_requests",),
    "crawl_wake": ("crawl_requests",),
    "crawl_bloom": ("crawl_filter_fingerprint", "crawl_item_fingerprint"),
}
_OF_A_QUEUE: Final = (
    "requests", "requests_data", "processing", "processing_data", "leases", "delayed",
    "counters", "wake", "failed", "filter_fingerprint",
)  # fmt: skip
_FLAGS: Final = {"1": True, "true": True, "0": False, "false": False, "none": False}
_COMPONENTS: Final = ("queue", "filter", "item")


class CrawlSettings(Protocol):
    """Settings of a crawler: a ``dict`` or the settings of Scrapy."""

    def get(self, name: str, default: Any = None, /) -> Any: ...


def read_flag(settings: CrawlSettings, name: str) -> bool:
    """Read a setting that is true or false. An absent setting is ``False``.

    Raise ConfigurationError for any other value.
    """
    text = str(settings.get(name, False)).lower()
    if text not in _FLAGS:
        rule = f"one of {', '.join(_FLAGS)}"
        raise ConfigurationError(name, settings.get(name, None), rule)
    return _FLAGS[text]


class RedisKeyManager:
    """Builds every key of one namespace, which is a project or one of its spiders.

    Args:
        project_name: Name of the project.
        spider_name: Name of the spider; ``None`` or ``""`` for the keys that belong to
            the project alone.

    Raises:
        ConfigurationError: A name contains ``:`` or breaks another rule for names. The
            spider names ``queue``, ``item`` and ``filter`` are refused, too, because
            their keys could be taken for keys of another namespace.
    """

    def __init__(
        self, project_name: str = "default", spider_name: str | None = None
    ) -> None:
        self._project = cast("str", name_of(project_name))
        self._spider: str | None = None
        self.set_spider_name(spider_name)

    @classmethod
    def from_settings(cls, settings: CrawlSettings) -> RedisKeyManager:
        """Make a manager from the settings ``PROJECT_NAME`` and ``SPIDER_NAME``.

        Args:
            settings: A ``dict``, or the settings of Scrapy.

        Raises:
            ConfigurationError: A name breaks a rule of :class:`RedisKeyManager`.
        """
        project = settings.get("PROJECT_NAME", "default")
        return cls(project, settings.get("SPIDER_NAME", None))

    def set_spider_name(self, spider_name: str | None) -> None:
        """Change the spider. ``None`` or ``""`` means the project alone.

        Raises:
            ConfigurationError: The name breaks a rule of :class:`RedisKeyManager`. The
                manager then keeps its former spider.
        """
        none = spider_name is None or spider_name == ""
        spider = None if none else cast("str", name_of(spider_name))
        if spider in _COMPONENTS:
            rule = (
                f"no spider is called {', '.join(_COMPONENTS)}: they are parts of keys"
            )
            raise ConfigurationError("spider", spider, rule, f"Try '{spider}_spider'.")
        KEYS["crawl_requests"].build(project=self._project, spider=spider)
        self._spider = spider

    @property
    def project_name(self) -> str:
        """The name of the project."""
        return self._project

    @property
    def spider_name(self) -> str | None:
        """The name of the spider, or ``None``."""
        return self._spider

    @property
    def namespace(self) -> str:
        """The project's name, or ``project:spider``."""
        return ":".join(filter(None, (self._project, self._spider)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.namespace}>"

    def get_requests_queue_key(self) -> str:
        """Return the key of the waiting requests, a sorted set: member → priority."""
        return self._key("crawl_requests")

    def get_requests_data_key(self) -> str:
        """Return the key of the waiting requests' bodies, a hash: member → body."""
        return self._key("crawl_requests_data")

    def get_processing_queue_key(self) -> str:
        """Return the key of the requests that workers hold, a sorted set."""
        return self._key("crawl_processing")

    def get_processing_data_key(self) -> str:
        """Return the key of the held requests' bodies, a hash: member → body."""
        return self._key("crawl_processing_data")

    def get_failed_queue_key(self) -> str:
        """Return the key of the requests that are not retried any more, a list."""
        return self._key("crawl_failed")

    def get_failed_retries_key(self, key: str | bytes) -> str:
        """Return the key that counts the failed attempts of one member of the queue.

        Args:
            key: The member, any text or bytes. Bytes that are not UTF-8 are decoded
                with ``surrogateescape``.
        """
        member = (
            key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key
        )
        return self._key("crawl_failed_retries", key=member)

    def get_filter_fingerprint_key(self) -> str:
        """Return the key of the fingerprints of requests, a set."""
        return self._key("crawl_filter_fingerprint")

    def get_item_fingerprint_key(self) -> str:
        """Return the key of the fingerprints of items, a set."""
        return self._key("crawl_item_fingerprint")

    def get_own_key(self, row: str, beside: str = "") -> str:
        """Return a key that only this package uses and the protocol does not define.

        Args:
            row: Name of the key in the table of keys, such as ``crawl_leases``.
            beside: Name of a key of the protocol. Both keys lie in the same slot of a
                Redis Cluster. Only ``crawl_bloom`` needs this argument.
        """
        place = place_beside(self._key(beside or _BESIDE[row][0]))
        return KEYS[row].locate(place=place)

    def single_keys(self) -> dict[str, str]:
        """Return each key that exists once per namespace, with its name in the table.

        The keys that only this package uses are included.
        """
        found = {self._key(row): row for row in _ROWS if row != "crawl_failed_retries"}
        for row, places in _BESIDE.items():
            found |= {self.get_own_key(row, beside): row for beside in places}
        return found

    def _key(self, row: str, **more: str) -> str:
        return KEYS[row].build(project=self._project, spider=self._spider, **more)

    @staticmethod
    def extract_project_name_from_key(key: object) -> str | None:
        """Return the project in a key, or ``None`` if the key belongs to no crawl."""
        found = _read_contract(key)
        return found.project if found else None

    @staticmethod
    def extract_spider_name_from_key(key: object) -> str | None:
        """Return the spider in a key, or ``None`` if the key names no spider."""
        found = _read_contract(key)
        return found.spider if found else None


class QueueKeys(NamedTuple):
    """The keys of one queue, with their types and their order in scripts."""

    by_row: dict[str, str]  # row without "crawl_" → key, in the order of the scripts
    types: dict[str, str]  # key → type in Redis
    retries: str  # the keys that count failed attempts begin so; a member follows

    @property
    def in_order(self) -> list[str]:
        """The keys in the order in which the scripts expect them."""
        return [*self.by_row.values()]

    @property
    def wake(self) -> str:
        """The key of the list on which the blocking read waits."""
        return self.by_row["wake"]

    @classmethod
    def of(cls, manager: RedisKeyManager) -> QueueKeys:
        rows = {row: key for key, row in manager.single_keys().items()}
        found = {row: rows[f"crawl_{row}"] for row in _OF_A_QUEUE}
        types = {key: str(KEYS[f"crawl_{row}"].type) for row, key in found.items()}
        return cls(found, types, manager.get_failed_retries_key(""))


class CrawlKey(NamedTuple):
    """The parts of a key: its row in the table of keys, its project and its spider."""

    row: str
    project: str
    spider: str | None


def read_key(key: object) -> CrawlKey | None:
    """Parse a key of the protocol, or a key that only this package uses.

    Return ``None`` if no :class:`RedisKeyManager` makes such a key.
    """
    for name, beside in _BESIDE.items():
        fields = KEYS[name].parse(key) if isinstance(key, str | bytes) else None
        if fields is not None:
            found = _read_contract(key_beside(fields["place"]))
            if found is not None and found.row in beside:
                return found._replace(row=name)
    return _read_contract(key)


def _read_contract(key: object) -> CrawlKey | None:
    if not isinstance(key, str | bytes):
        return None
    for name in _ROWS:
        fields = KEYS[name].parse(key)
        if fields is None:
            continue
        try:
            manager = RedisKeyManager(fields["project"], fields.get("spider"))
        except ConfigurationError:
            return None
        return CrawlKey(name, manager.project_name, manager.spider_name)
    return None


class RedisKeyValidator:
    """Checks whether a key is one that :class:`RedisKeyManager` makes."""

    def validate_key_naming(self, key: object, project_name: str | None = None) -> bool:
        """Return whether a key has a name that the protocol defines.

        Args:
            key: Any value. The result is ``False`` for a value that is not a key.
            project_name: The project to which the key must belong; ``None`` for any.
        """
        found = _read_contract(key)
        return found is not None and (not project_name or found.project == project_name)

    def validate_multiple_keys(
        self, keys: Iterable[object], project_name: str | None = None
    ) -> tuple[bool, list[object]]:
        """Return whether all keys are valid, and the keys that are not."""
        wrong = [key for key in keys if not self.validate_key_naming(key, project_name)]
        return not wrong, wrong

    def get_key_info(self, key: object) -> dict[str, Any]:
        """Return the parts of a key.

        Returns:
            ``{valid, framework, project, [spider], component, sub_component}``, or
            ``{valid: False, error}`` for any other key.
        """
        found = _read_contract(key)
        if found is None:
            return {"valid": False, "error": CRAWL_KEY_FAULT}
        framework, *_, rest = KEYS[found.row].template.split(":", 3)
        component, sub_component = rest.split(":")[:2]
        return {
            "valid": True,
            "framework": framework,
            "project": found.project,
            **({"spider": found.spider} if found.spider is not None else {}),
            "component": component,
            "sub_component": sub_component,
        }


_VALIDATOR: Final = RedisKeyValidator()


def print_validation_report(
    keys: Iterable[object], project_name: str | None = None
) -> None:
    """Print whether each key is valid, its parts, and the number of valid keys.

    Args:
        keys: The keys to check.
        project_name: The project to which the keys must belong; ``None`` for any.
    """
    keys = [*keys]
    for key in keys:
        valid = _VALIDATOR.validate_key_naming(key, project_name)
        info = _VALIDATOR.get_key_info(key)
        parts = [f"{name}={value}" for name, value in info.items() if name != "valid"]
        print("valid  " if valid else "INVALID", repr(key), *parts)  # noqa: T201 - it prints
    _, wrong = _VALIDATOR.validate_multiple_keys(keys, project_name)
    print(f"{len(keys) - len(wrong)} of {len(keys)} keys are valid")  # noqa: T201 - it prints


# Other names that the protocol uses for these functions.
create_redis_key_manager: Final = RedisKeyManager
get_redis_key_manager_from_settings: Final = RedisKeyManager.from_settings
validate_redis_key_naming: Final = _VALIDATOR.validate_key_naming
validate_multiple_redis_keys: Final = _VALIDATOR.validate_multiple_keys
get_redis_key_info: Final = _VALIDATOR.get_key_info
