# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Work of libraries with one result for all tests, done once per process.

Each test starts a Nova and a Placement of its own, as a cloud does once. A
quarter of the CPU time of a test with one server went to these.
"""

from collections.abc import Callable
import functools
import inspect
import types
from typing import Any
import weakref

import jsonschema
from sqlalchemy.dialects.sqlite import pysqlite
from sqlalchemy.engine import base as sqlalchemy_engine
from sqlalchemy import schema as sqlalchemy_schema
from sqlalchemy import util as sqlalchemy_util

#: SQL statements that Nova and Placement have compiled, of all databases.
_statements: Any = sqlalchemy_util.LRUCache(10000)

#: Schemas found valid, by id().
_schemas: dict[int, Any] = {}

#: Aliases of each table, by name.
_aliases: Any = weakref.WeakKeyDictionary()


@functools.cache
def do_all() -> None:
    """Replace the functions of libraries that do such work each time."""
    share_compiled_statements()
    share_named_aliases()
    check_schemas_once()
    derive_validators_once()
    inspect_functions_once()


def share_compiled_statements() -> None:
    """Make the engines of all databases use the same compiled statements.

    A statement is found by its dialect, of which each engine has one; all
    that the tests create are the same.
    """
    dialect: Any = pysqlite.SQLiteDialect_pysqlite
    dialect.__eq__ = lambda this, other: type(this) is type(other)
    dialect.__hash__ = lambda this: hash(type(this))
    # A database in memory does not go away between two statements.
    dialect.do_ping = lambda this, connection: True
    engine: Any = sqlalchemy_engine.Engine
    engine._compiled_cache = property(
        lambda this: _statements, lambda this, cache: None)


def share_named_aliases() -> None:
    """Make an alias of a table the same object for the same name.

    Placement names all its aliases and makes them again for each query, each
    with a copy of all columns.
    """
    table: Any = sqlalchemy_schema.Table
    make = table.alias

    def find_or_make(this: Any, name: str | None = None,
                     flat: bool = False) -> Any:
        if name is None:
            return make(this, name, flat)
        known = _aliases.setdefault(this, {})
        if name not in known:
            known[name] = make(this, name, flat)
        return known[name]
    table.alias = find_or_make


def derive_validators_once() -> None:
    """Make jsonschema derive each class of validators at its first use.

    Nova does so for each body that it validates. Its functions are methods
    of an object per body that use nothing of the object.
    """
    validators: Any = jsonschema.validators
    extend = validators.extend
    derived: dict[Any, Any] = {}

    def extend_once(validator: Any, changed: Any = (), **more: Any) -> Any:
        if more:
            return extend(validator, changed, **more)
        key = (validator, *((name, getattr(check, '__func__', check))
                            for name, check in dict(changed).items()))
        if key not in derived:
            derived[key] = extend(validator, changed)
        return derived[key]
    validators.extend = extend_once


def inspect_functions_once() -> None:
    """Make inspect.getfullargspec() look at each function once.

    oslo.policy and oslo.middleware call it for each check and request.
    """
    look: Any = inspect.getfullargspec
    known: Any = weakref.WeakKeyDictionary()

    def look_once(function: Any) -> Any:
        function = getattr(function, '__func__', function)
        if not isinstance(function, types.FunctionType):
            return look(function)
        if function not in known:
            known[function] = look(function)
        return known[function]
    inspect.getfullargspec = look_once  # type: ignore[assignment]


def check_schemas_once() -> None:
    """Make jsonschema.validate() check each schema at its first use.

    Placement calls it for each request, with the same few schemas.
    """
    validator = jsonschema.validators.validator_for({})
    check: Callable[..., None] = validator.check_schema

    def check_once(schema: Any, **kwargs: Any) -> None:
        if _schemas.get(id(schema)) is not schema:
            check(schema, **kwargs)
            _schemas[id(schema)] = schema
    validator.check_schema = staticmethod(check_once)
