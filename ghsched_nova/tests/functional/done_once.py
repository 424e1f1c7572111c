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
seventh of the CPU time of a test with one server went to these.
"""

from collections.abc import Callable
from typing import Any

import jsonschema
from sqlalchemy.dialects.sqlite import pysqlite
from sqlalchemy.engine import base as sqlalchemy_engine
from sqlalchemy import util as sqlalchemy_util

#: SQL statements that Nova and Placement have compiled, of all databases.
_statements: Any = sqlalchemy_util.LRUCache(10000)

#: Schemas found valid, by id().
_schemas: dict[int, Any] = {}


def share_compiled_statements() -> None:
    """Make the engines of all databases use the same compiled statements.

    A statement is found by its dialect, of which each engine has one; all
    that the tests create are the same.
    """
    dialect: Any = pysqlite.SQLiteDialect_pysqlite
    dialect.__eq__ = lambda this, other: type(this) is type(other)
    dialect.__hash__ = lambda this: hash(type(this))
    engine: Any = sqlalchemy_engine.Engine
    engine._compiled_cache = property(
        lambda this: _statements, lambda this, cache: None)


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
