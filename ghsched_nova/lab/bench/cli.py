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

"""``ghsched-bench``: measure a machine, and compare two measurements.

It needs neither Nova nor any service, but for the scenarios "cloud" and
"gh-density".
"""

import argparse
from collections.abc import Sequence
import dataclasses
import json
from pathlib import Path
import signal
import sys
from typing import Any
from typing import NoReturn

from ghsched_nova.cmd import console
from ghsched_nova.lab.bench import compare
from ghsched_nova.lab.bench import document
from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.machine import Machine
from ghsched_nova.lab.bench import model_figures
from ghsched_nova.lab.bench import model_report
from ghsched_nova.lab.bench import record
from ghsched_nova.lab.bench import report
from ghsched_nova.lab.bench import run
from ghsched_nova.lab.bench.scenario import Parameter
from ghsched_nova.lab.bench.scenario import Scenario
from ghsched_nova.lab.bench import scenario_list
from ghsched_nova.lab.bench import signature
from ghsched_nova.lab.bench import suite
from ghsched_placement.base import exits

#: Of "run" alone: something is missing here, as the report says.
EXIT_SKIPPED = 3


def make_parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog='ghsched-bench',
        description='Measure a machine; compare two measurements.')
    console.add_version_option(top)
    commands = top.add_subparsers(dest='command', metavar='COMMAND',
                                  required=True)
    listed = commands.add_parser(
        'list', help='list the scenarios, and which can run on this machine')
    listed.set_defaults(run=_list)
    _add_run(commands.add_parser(
        'run', help='run a scenario of this machine'))
    cloud = _add_scenario(commands, scenario_list.named('cloud'))
    _add_scenario(cloud.add_subparsers(dest='scenario', metavar='SCENARIO'),
                  scenario_list.named('gh-density'))
    _add_machine(commands.add_parser(
        'machine', help='measure all that this machine can show of the '
                        'bandwidth keys, and sign it'))
    _add_compare(commands.add_parser(
        'compare', help='compare two measurements'))
    _add_report(commands.add_parser(
        'report', help='write a report with tables and plots'))
    verify = commands.add_parser(
        'verify', help='check the signature of a report')
    verify.add_argument('report', type=Path, help='a signed report')
    verify.set_defaults(run=_verify)
    return top


def _add_run(run_parser: argparse.ArgumentParser) -> None:
    names = run_parser.add_subparsers(dest='scenario', metavar='SCENARIO',
                                      required=True)
    for scenario in scenario_list.MACHINE:
        _add_scenario(names, scenario)


def _add_scenario(names: Any, scenario: Scenario) -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = names.add_parser(
        scenario.name, help=scenario.title,
        description=scenario.title.capitalize() + '.')
    for parameter in scenario.parameters:
        _add_parameter(sub, parameter)
    sub.add_argument('-o', '--output', type=Path, metavar='FILE',
                     help='write the result to FILE as JSON, as the other '
                          'commands read it')
    sub.set_defaults(run=_run, record=scenario)
    return sub


def _add_parameter(sub: argparse.ArgumentParser, parameter: Parameter
                   ) -> None:
    shown: object = parameter.default
    choices = parameter.choices
    if isinstance(shown, bool):
        shown, choices = 'yes' if shown else 'no', ('yes', 'no')
    text = parameter.help + (f': {", ".join(choices)}' if choices else '')
    if shown != '':
        text += f' ({shown})'
    alone: dict[str, Any] = {}
    if isinstance(parameter.default, bool):
        alone = {'nargs': '?', 'const': True}
    sub.add_argument(f'--{parameter.name}', dest=f'set {parameter.name}',
                     metavar='VALUE', **alone, help=text.replace('%', '%%'),
                     type=lambda value: _parameter(parameter, value))


def _parameter(parameter: Parameter, text: str) -> record.Value:
    try:
        return parameter.parse(text)
    except errors.BenchError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_machine(sub: argparse.ArgumentParser) -> None:
    sub.description = (
        'Measures the latency of memory by its use, and what the bandwidth '
        'keys do to redis beside memory streams, as processes and in guests. '
        'Writes a report, its signature (.sig) and a page with pictures '
        '(.html).')
    sub.add_argument('-o', '--output', type=Path, required=True,
                     metavar='FILE', help='file of the report, as JSON')
    sub.add_argument('--minutes', type=float, default=90.0,
                     help='minutes after which no further part begins '
                          '(default: %(default)g)')
    sub.add_argument('--key', type=Path, metavar='FILE',
                     default=Path('ghsched-bench-key'),
                     help='private key of OpenSSH to sign with, which is made '
                          'if there is none (default: %(default)s)')
    known: set[str] = set()
    for scenario, own in suite.PARTS:
        for parameter in scenario.parameters:
            if parameter.name not in known | own.keys() | {'in-guest'}:
                known.add(parameter.name)
                _add_parameter(sub, dataclasses.replace(parameter, help=(
                    f'{scenario.name}: {parameter.help}')))
    sub.set_defaults(run=_measure_machine)


def _add_compare(sub: argparse.ArgumentParser) -> None:
    sub.add_argument('first', type=Path, help='a report')
    sub.add_argument('second', type=Path, nargs='?',
                     help='the report to compare it with')
    sub.add_argument('--kind', choices=sorted(_COMPARISONS),
                     default='before-after',
                     help='relation of the two measurements (default: '
                          '%(default)s)')
    sub.add_argument('--allow', action='append', choices=compare.ASPECTS,
                     default=[], metavar='ASPECT',
                     help='aspect that may differ; the comparison notes it: '
                          + ', '.join(compare.ASPECTS))
    _add_form(sub, ('json',))
    sub.set_defaults(run=lambda arguments: _COMPARISONS[arguments.kind](
        arguments))


def _add_report(sub: argparse.ArgumentParser) -> None:
    sub.add_argument('reports', type=Path, nargs='+', metavar='REPORT',
                     help='result written by "run"')
    _add_form(sub, ())
    sub.set_defaults(run=_report)


def _add_form(sub: argparse.ArgumentParser, more: Sequence[str]) -> None:
    sub.add_argument('-f', '--format', default='md',
                     choices=(*document.FORMS, *more),
                     help='format of the output (default: %(default)s)')
    sub.add_argument('-o', '--output', type=Path, metavar='FILE',
                     help='write to FILE instead of standard output')
    sub.add_argument('--no-pictures', action='store_true',
                     help='leave out the plots, which need matplotlib')


def main(argv: Sequence[str] | None = None) -> int:
    """Console script; its result is the exit status."""
    arguments = make_parser().parse_args(argv)
    handler = signal.signal(signal.SIGTERM, _end)
    try:
        return console.run_command('ghsched-bench',
                                   lambda: int(arguments.run(arguments)))
    except errors.BenchError as error:
        print(f'ghsched-bench: {error}', file=sys.stderr)
        return exits.COULD_NOT
    finally:
        signal.signal(signal.SIGTERM, handler)


def _end(_number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _list(_arguments: argparse.Namespace) -> int:
    """Return every scenario with its defaults, and whether it can run here."""
    machine = Machine()
    for scenario in scenario_list.ALL:
        reasons = scenario.missing(machine, scenario.values({}))
        print(f'{scenario.name}: {scenario.title}')
        for reason in reasons or ('can run here',):
            print(f'    {reason}')
    return exits.DONE


def _get_parameters(arguments: argparse.Namespace
                    ) -> dict[str, record.Value]:
    """Return the scenario parameters of a command line."""
    return {name.removeprefix('set '): value
            for name, value in vars(arguments).items()
            if name.startswith('set ') and value is not None}


def _run(arguments: argparse.Namespace) -> int:
    scenario: Scenario = arguments.record
    given = _get_parameters(arguments)
    if arguments.output:
        console.check_writable(arguments.output)
    try:
        result = run.run(scenario, given, Machine(), _say)
    except KeyboardInterrupt:
        _say('All that was started is ended.')
        raise
    made = record.Report((result,))
    if arguments.output:
        arguments.output.write_text(record.to_json(made), 'utf-8')
    print(document.render(report.document(made), 'md'), end='')
    return {'done': exits.DONE, 'failed': exits.FOUND,
            'skipped': EXIT_SKIPPED}[result.status]


def _measure_machine(arguments: argparse.Namespace) -> int:
    output: Path = arguments.output
    console.check_writable(output)
    made = suite.run_suite(_get_parameters(arguments), arguments.minutes,
                           Machine(), _say)
    output.write_text(record.to_json(made), 'utf-8')
    signature.sign_file(Machine(), output, arguments.key)
    output.with_suffix('.html').write_text(document.render(
        report.document(made, output.stem), 'html'), 'utf-8')
    for result in made.results:
        print(f'{result.scenario}: {result.status}'
              + ''.join(f'; {reason}' for reason in result.reasons))
    done = {result.status for result in made.results}
    return (exits.FOUND if 'failed' in done
            else EXIT_SKIPPED if 'skipped' in done else exits.DONE)


def _verify(arguments: argparse.Namespace) -> int:
    key = signature.verify_file(Machine(), arguments.report)
    print(f'{arguments.report}: signed by the {key}')
    return exits.DONE


def _load(path: Path) -> record.Report:
    try:
        return record.from_json(path.read_text(encoding='utf-8'))
    except UnicodeDecodeError:
        raise errors.BenchError(f'{path}: is no text') from None
    except errors.BenchError as error:
        raise errors.BenchError(f'{path}: {error}') from None


def _compare_reports(arguments: argparse.Namespace) -> int:
    if arguments.second is None:
        raise errors.BenchError('compare: name a second report')
    before, after = arguments.kind.split('-')
    found = compare.pairs(_load(arguments.first), _load(arguments.second),
                          (before, after), arguments.allow)
    if arguments.format == 'json':
        _write(arguments.output, json.dumps(
            [_as_data(pair) for pair in found], indent=1) + '\n')
    else:
        _publish(arguments, report.comparison(found, _stem(arguments)))
    return exits.DONE


def _compare_with_model(arguments: argparse.Namespace) -> int:
    if arguments.second is not None:
        raise errors.BenchError('compare: --kind model takes one report')
    rows = model_figures.compare_with_model(_load(arguments.first))
    if arguments.format == 'json':
        _write(arguments.output, json.dumps({
            title: [dataclasses.asdict(row) for row in effects]
            for title, effects in rows.items()}, indent=1) + '\n')
    else:
        _publish(arguments, model_report.make_document(rows))
    return exits.DONE


#: Commands by the relation of the measurements that they compare.
_COMPARISONS = {'before-after': _compare_reports,
                'host-guest': _compare_reports,
                'model': _compare_with_model}


def _as_data(pair: compare.Pair) -> dict[str, Any]:
    """Return a pair for programs; the samples are in the two reports."""
    data = dataclasses.asdict(pair)
    del data['results']
    return {**data, 'environments': [
        dataclasses.asdict(result.environment) for result in pair.results]}


def _report(arguments: argparse.Namespace) -> int:
    made = record.Report(tuple(
        result for path in arguments.reports
        for result in _load(path).results))
    _publish(arguments, report.document(made, _stem(arguments)))
    return exits.DONE


def _stem(arguments: argparse.Namespace) -> str | None:
    """Return the prefix of the pictures' file names; None if there are no
    pictures.

    They stand beside the output, or in a page of HTML; a terminal has no
    place for them.
    """
    output: Path | None = arguments.output
    if arguments.no_pictures or not (output or arguments.format == 'html'):
        return None
    return output.stem if output else 'report'


def _publish(arguments: argparse.Namespace, blocks: Sequence[document.Block]
             ) -> None:
    """Write a document, and its pictures where they are files."""
    if arguments.output:
        console.check_writable(arguments.output)
    if arguments.output and arguments.format != 'html':
        for picture in document.pictures(blocks):
            (arguments.output.parent / picture.name).write_text(
                picture.svg, 'utf-8')
    _write(arguments.output, document.render(blocks, arguments.format))


def _write(output: Path | None, text: str) -> None:
    if output:
        output.write_text(text, 'utf-8')
    else:
        print(text, end='')


if __name__ == '__main__':
    sys.exit(main())
