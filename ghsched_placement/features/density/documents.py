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


"""Load YAML files of users within limits.

A few hundred bytes of YAML can expand to a million nodes (by aliases of
aliases), nest deeper than Python recurses, or contain a number that Python
refuses to print (more than 4,300 digits).
"""

from pathlib import Path
from typing import Any

import yaml

#: Maximum length of a file in characters. The largest file of this project has
#: some thousands.
MAX_LENGTH = 1_000_000
#: Maximum number of YAML nodes; a node counts once for each alias that refers
#: to it.
MAX_NODES = 100_000
MAX_DEPTH = 50
#: Maximum number of digits of a number.
MAX_DIGITS = 30


class DensityFileError(ValueError):
    """Raised if a file cannot be read, or is not YAML within the limits."""


def load_yaml(path: str) -> Any:
    """Load a YAML file that is not too long, too deep or too complex.

    The limits protect the program from files that would exhaust its memory.

    :raises DensityFileError: if the file cannot be read, or is not a YAML file
        within the limits. The error does not name the path.
    """
    try:
        text = Path(path).read_text(encoding='utf-8')
    except OSError as error:
        raise DensityFileError(str(error.strerror)) from None
    except UnicodeDecodeError as error:
        raise DensityFileError(f'not YAML: {error}') from None
    if len(text) > MAX_LENGTH:
        raise DensityFileError(f'has more than {MAX_LENGTH} characters')
    try:
        return yaml.load(text, Loader=BoundedLoader)  # noqa: S506
    except (yaml.YAMLError, ValueError) as error:
        # Of a date that is none, for example.
        raise DensityFileError(f'not YAML: {error}') from None


class BoundedLoader(yaml.SafeLoader):
    """YAML loader for safe types that enforces the limits of this module.

    It also refuses a mapping that contains the same key twice.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._depth = 0
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._depth += 1
        event: Any = self.peek_event()      # type: ignore[no-untyped-call]
        if self._depth > MAX_DEPTH:
            raise _make_yaml_error('it is nested too deep', event.start_mark)
        node: Any = super().compose_node(parent, index)
        self._depth -= 1
        if node not in self._sizes:
            if isinstance(event, yaml.AliasEvent):
                raise _make_yaml_error('a node is part of itself',
                                       event.start_mark)
            self._sizes[node] = 1 + sum(
                self._sizes[child] for child in _list_child_nodes(node))
        if self._sizes[node] > MAX_NODES:
            raise _make_yaml_error('it has too many nodes', event.start_mark)
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        mapping = super().construct_mapping(node, deep)
        if isinstance(node, yaml.MappingNode) and (
                len(mapping) < len(node.value)):
            raise _make_yaml_error('a key is given twice', node.start_mark)
        return mapping

    def construct_yaml_int(self, node: Any) -> Any:
        if len(node.value) > MAX_DIGITS:
            raise _make_yaml_error('a number is too long', node.start_mark)
        return super().construct_yaml_int(node)


BoundedLoader.add_constructor('tag:yaml.org,2002:int',
                              BoundedLoader.construct_yaml_int)


def _list_child_nodes(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _make_yaml_error(why: str, mark: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, why, mark)
