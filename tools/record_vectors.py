#!/usr/bin/env python3
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

"""Record what a kernel's resctrl answers, for the emulator to be held to.

``record_vectors.py [-o OPTIONS] [-c N] KERNEL OUT ARGUMENT...`` starts
KERNEL, a User Mode Linux with CONFIG_RESCTRL_FS above some hardware, with the
arguments that make up the hardware. This script runs in it as init on the
machine's files, carries out a drawn sequence of operations, and writes to OUT
(gzipped JSON) what each answered and what has changed after it.
"""

import argparse
import errno
import gzip
import json
import os
from pathlib import Path
import random
import re
import subprocess  # noqa: S404
import sys
import tempfile
import threading

ROOT = '/sys/fs/resctrl'
#: Names of directories that are no control groups.
NOT_GROUPS = ('info', 'mon_data', 'mon_groups')
NAMES = ('a', 'b', 'c', 'd', 'x y', 'info', 'tasks', 'mon_groups')
INFO = ('MB/num_closids', 'MB/min_bandwidth', 'MB/bandwidth_gran',
        'MB/delay_linear', 'L3/num_closids', 'L3CODE/num_closids',
        'L3_MON/num_rmids', 'L3_MON/mon_features',
        'L3_MON/max_threshold_occupancy')


class Kernel:
    """The mounted file system, with threads that can be put into groups."""

    def __init__(self, draw):
        self.draw = draw
        idle = threading.Event()
        self.threads = {}
        for number in range(6):
            thread = threading.Thread(target=idle.wait, daemon=True)
            thread.start()
            self.threads[f'T{number}'] = thread.native_id
        self.names = {tid: name for name, tid in self.threads.items()}

    def read(self, path):
        try:
            with open(f'{ROOT}/{path}', encoding='utf-8') as stream:
                text = stream.read()
        except OSError as error:
            return errno.errorcode[error.errno]
        if path.rpartition('/')[2] != 'tasks':
            return text
        return ' '.join(sorted(self.names[int(word)] for word in text.split()
                               if int(word) in self.names))

    def do(self, what, path, text):
        for name, tid in self.threads.items():
            text = text.replace(f'<{name}>', str(tid))
        try:
            if what == 'mkdir':
                os.mkdir(f'{ROOT}/{path}')
            elif what == 'rmdir':
                os.rmdir(f'{ROOT}/{path}')
            else:
                target = os.open(f'{ROOT}/{path}', os.O_WRONLY)
                try:
                    os.write(target, text.encode())
                finally:
                    os.close(target)
        except OSError as error:
            return errno.errorcode[error.errno]
        return ''

    def status(self):
        return re.sub(
            r'\b\d+\b', lambda match: f'<{self.names[int(match[0])]}>'
            if int(match[0]) in self.names else match[0],
            self.read('info/last_cmd_status'))

    def groups(self, top=''):
        return sorted(
            entry.name for entry in os.scandir(f'{ROOT}/{top}')
            if entry.is_dir() and (top or entry.name not in NOT_GROUPS))

    def state(self):
        """Text of the files that operations change, by path."""
        found = {}
        for group in ('', *(f'{name}/' for name in self.groups())):
            for name in ('schemata', 'mode', 'tasks'):
                found[group + name] = self.read(group + name)
            for name in self.groups(f'{group}mon_groups'):
                path = f'{group}mon_groups/{name}/tasks'
                found[path] = self.read(path)
        return found


class Operations:
    """Draws them; most make sense, and some do not."""

    def __init__(self, kernel, monitors):
        self.monitors = monitors
        self.kernel, self.pick = kernel, kernel.draw.choice
        rows = kernel.read('schemata').split()
        self.lines = {row.partition(':')[0]: [
            item.partition('=')[0]
            for item in row.partition(':')[2].split(';')] for row in rows}

    def draw(self):
        what = ['make', 'make', 'remove', 'move', 'move', 'mode', *(
            ['schemata'] * 4)]
        if self.monitors:
            what += ['measure', 'forget']
        return getattr(self, self.pick(what))()

    def group(self):
        return self.pick(['', *(
            f'{name}/' for name in self.kernel.groups())])

    def make(self):
        return 'mkdir', self.pick(NAMES), ''

    def measure(self):
        return 'mkdir', f'{self.group()}mon_groups/{self.pick("mno")}', ''

    def remove(self):
        return 'rmdir', self.pick([*self.kernel.groups(), 'absent']), ''

    def forget(self):
        top = f'{self.group()}mon_groups'
        return 'rmdir', f'{top}/{self.pick("mno")}', ''

    def move(self):
        group = self.group()
        inside = self.kernel.groups(f'{group}mon_groups')
        if inside and self.pick((True, False)):
            group += f'mon_groups/{self.pick(inside)}/'
        ids = [self.pick((*(f'<{name}>' for name in self.kernel.threads),
                          *(f'<{name}>' for name in self.kernel.threads),
                          '4194300', '12x', '-5'))
               for _ in range(self.pick((1, 1, 1, 2)))]
        return 'write', f'{group}tasks', ','.join(ids) + '\n'

    def mode(self):
        return 'write', f'{self.group()}mode', self.pick((
            'shareable\n', 'exclusive\n', 'exclusive\n', 'x\n', 'shareable'))

    def schemata(self):
        rows = []
        for _ in range(self.pick((1, 1, 1, 2))):
            line = self.pick((*self.lines, *self.lines, 'MBX'))
            domains = self.lines.get(line, ['0'])
            rows.append(line + ':' + ';'.join(
                self.pick((*domains, *domains, '99')) + '=' + self.value(line)
                for _ in range(self.pick((1, 1, 2)))))
        return ('write', f'{self.group()}schemata',
                '\n'.join(rows) + self.pick(('\n', '\n', '\n', '')))

    def value(self, line):
        if line.startswith('L'):
            width = self.pick(range(1, 13))
            return self.pick((
                f'{((1 << width) - 1) << self.pick(range(6)):x}',
                f'{self.pick(range(2 ** 16)):x}', '0', 'fffff', 'xyz', ''))
        return self.pick((str(self.pick(range(111))), str(self.pick(range(
            3000))), '10', '50', '100', '0', 'abc', '-1', '4294967295'))


def record(seed, count, monitors):
    """A sequence, with what it changed. Leaves no group behind."""
    kernel = Kernel(random.Random(seed))  # noqa: S311
    operations = Operations(kernel, monitors)
    before = kernel.state()
    found = {'info': {name: kernel.read(f'info/{name}') for name in INFO},
             'start': before, 'steps': []}
    for _ in range(count):
        what, path, text = operations.draw()
        answer = kernel.do(what, path, text)
        after = kernel.state()
        changed = {name: after.get(name) for name in before.keys() | after
                   if after.get(name) != before.get(name)}
        found['steps'].append([what, path, text, answer, kernel.status(),
                               changed])
        before = after
    return found


def inside(out, options, count, monitors):
    """As init of the kernel."""
    os.environ['PATH'] = '/usr/sbin:/usr/bin:/sbin:/bin'
    for kind, where in (('proc', '/proc'), ('sysfs', '/sys')):
        subprocess.run(['mount', '-t', kind, kind, where], check=True)
    mount = ['mount', '-t', 'resctrl', *(['-o', options] if options else []),
             'resctrl', ROOT]
    subprocess.run(mount, check=True)
    found = {'kernel': os.uname().release, 'options': options,
             **record(Path(out).name, count, monitors)}
    with gzip.GzipFile(out, 'wb', mtime=0) as stream:
        stream.write(json.dumps(found, sort_keys=True).encode())
    Path('/proc/sysrq-trigger').write_text('o', encoding='utf-8')


def main(argv):
    if os.getpid() == 1:
        inside(os.environ['out'], os.environ.get('options', ''),
               int(os.environ['count']), 'without' not in os.environ)
        threading.Event().wait()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('kernel')
    parser.add_argument('out', type=os.path.abspath)
    parser.add_argument('arguments', nargs='*')
    parser.add_argument('-o', '--options', default='')
    parser.add_argument('-c', '--count', type=int, default=600)
    parser.add_argument(
        '-w', '--without-monitors', action='store_true',
        help='make no monitoring groups; how long a monitoring id that is '
             'given back cannot be had is a matter of time')
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as top:
        init = Path(top) / 'init'
        init.write_text(f'#!{sys.base_prefix}/bin/python3\n' + Path(
            __file__).read_text(encoding='utf-8').partition('\n')[2],
            encoding='utf-8')
        init.chmod(0o755)
        return subprocess.run(
            [args.kernel, 'mem=512M', 'root=/dev/root', 'rootfstype=hostfs',
             'rootflags=/', 'rw', 'quiet', f'init={init}', 'con=null',
             'con0=null,fd:1', f'out={args.out}', f'count={args.count}',
             *([f'options={args.options}'] if args.options else []),
             *(['without=1'] if args.without_monitors else []),
             *args.arguments], check=False, stdin=subprocess.DEVNULL,
            timeout=600).returncode


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
