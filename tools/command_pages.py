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

"""Commands of ghsched as plain reStructuredText, from their parsers.

The text depends on the parsers alone, not on the Python or the terminal that
it is made with.
"""

import argparse
from collections.abc import Iterator
import configparser
import inspect
from pathlib import Path
import pkgutil
import re
import textwrap
from unittest import mock

SETUP = Path(__file__).resolve().parents[1] / 'setup.cfg'

#: Options of every command of cliff, which its own manual explains.
OF_CLIFF = frozenset((
    '--help', '--format', '--column', '--quote', '--noindent', '--max-width',
    '--fit-width', '--print-empty', '--sort-column', '--sort-ascending',
    '--sort-descending', '--prefix', '--variable'))

#: Number of values of an argument that has commands of its own.
_COMMANDS = argparse.PARSER

_SUFFIXES: dict[object, str] = {'*': '...', '+': '...'}


def describe_command(place: str, name: str) -> Iterator[str]:
    """Yield the lines of the usage and the options of a command.

    :param place: ``module:function`` that makes the parser.
    """
    yield from _describe_parser(pkgutil.resolve_name(place)(), name,
                                'Usage')


def describe_cloud_commands() -> Iterator[str]:
    """Yield the lines of each command of python-openstackclient."""
    setup = configparser.ConfigParser()
    setup.read(SETUP)
    entries = setup['entry_points']['openstack.ghsched.v1'].splitlines()
    for entry in sorted(filter(None, entries)):
        key, _, place = entry.partition('=')
        name = 'openstack ' + key.strip().replace('_', ' ')
        parser = pkgutil.resolve_name(place.strip())(
            mock.Mock(), None).get_parser(name)
        parser._actions[:] = [one for one in parser._actions
                              if not OF_CLIFF.intersection(one.option_strings)]
        parser.epilog = None    # Cliff names the plug-in.
        yield from _describe_parser(parser, name)


def describe_docstring(module: str) -> list[str]:
    """Return the lines of the docstring of a module."""
    text = inspect.getdoc(pkgutil.resolve_name(module)) or ''
    return text.splitlines()


def _describe_parser(parser: argparse.ArgumentParser, name: str,
                     title: str = '', underline: str = '=') -> Iterator[str]:
    actions = [one for one in parser._actions
               if not isinstance(one, argparse._HelpAction)]
    title = title or name
    yield from (title, underline * len(title), '')
    yield from (*_wrap(f'``{_render_usage(name, actions)}``', ''), '')
    yield from _describe_text(parser.description)
    for action in actions:
        if argparse.SUPPRESS != action.help and action.nargs != _COMMANDS:
            yield _render_name(action)
            yield from (*_wrap(_escape(_render_help(parser, action)), '    '),
                        '')
    yield from _describe_text(parser.epilog)
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from _describe_parser(
                    below, f'{name} {word}', underline='-' if ' ' in name
                    else '=')


def _describe_text(text: str | None) -> Iterator[str]:
    for paragraph in text.split('\n\n') if text else ():
        yield from (*_wrap(_escape(paragraph), ''), '')


def _render_usage(name: str, actions: list[argparse.Action]) -> str:
    """Return the command with what it cannot do without."""
    if any(one.nargs == _COMMANDS for one in actions):
        return f'{name} COMMAND ...'
    words = [name]
    if any(one.option_strings and not one.required for one in actions):
        words.append('[OPTION]...')
    for action in actions:
        if action.option_strings and action.required:
            words.append(f'{action.option_strings[-1]} '
                         f'{_render_value(action)}'.rstrip())
        elif not action.option_strings:
            value = _render_value(action)
            words.append(f'[{value}]' if action.nargs in ('?', '*')
                         else value)
    return ' '.join(words)


def _render_name(action: argparse.Action) -> str:
    """Return the names of an option with its value, or of an argument."""
    value = _render_value(action)
    *others, last = action.option_strings or ['']
    return ', '.join(f'``{one}``' for one in (
        *others, f'{last} {value}'.strip()))


def _render_value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ''
    metavar = action.metavar
    if isinstance(metavar, tuple):
        return ' '.join(metavar)
    if metavar is None and action.choices is not None:
        metavar = '{' + ','.join(map(str, action.choices)) + '}'
    if metavar is None:
        metavar = action.dest.upper() if action.option_strings else action.dest
    if isinstance(action.nargs, int):
        return ' '.join([metavar] * action.nargs)
    return metavar + _SUFFIXES.get(action.nargs, '')


def _render_help(parser: argparse.ArgumentParser,
                 action: argparse.Action) -> str:
    values = {**vars(action), 'prog': parser.prog}
    if action.choices is not None:
        values['choices'] = ', '.join(map(str, action.choices))
    return (action.help or '') % values


def _escape(text: str) -> str:
    """Return a text of a terminal such that reStructuredText shows it."""
    text = re.sub(r'([\\*`|])', r'\\\1', text)
    return re.sub(r'_(?!\w)', r'\\_', text)


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, 79, initial_indent=indent, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False)
