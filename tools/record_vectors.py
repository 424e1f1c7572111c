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
MON = 'info/L3_MON/'
#: Files of info/ that are written to, where there are any.
FILES = ('info/L3/io_alloc', 'info/L3/io_alloc_cbm', f'{MON}mbm_assign_mode',
         f'{MON}mbm_assign_on_mkdir', f'{MON}mbm_total_bytes_config',
         f'{MON}mbm_local_bytes_config',
         *(f'{MON}event_configs/{event}/event_filter'
           for event in ('mbm_total_bytes', 'mbm_local_bytes')))
#: What has to be read with them.
SHOWN = ('info/L3/bit_usage', f'{MON}available_mbm_cntrs',
         f'{MON}mon_features')


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
        self.files = ()

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
        """Return last_cmd_status with the names of threads for their ids.

        Other numbers stay: a percentage or a range can equal an id.
        """
        return re.sub(
            r'(?<=task )\d+', lambda match: f'<{self.names[int(match[0])]}>'
            if int(match[0]) in self.names else match[0],
            self.read('info/last_cmd_status'))

    def groups(self, top=''):
        return sorted(
            entry.name for entry in os.scandir(f'{ROOT}/{top}')
            if entry.is_dir() and (top or entry.name not in NOT_GROUPS))

    def state(self):
        """Text of the files that operations change, by path."""
        found = [*self.files, *(SHOWN if self.files else ())]
        counters = ('mbm_L3_assignments',) if self.files else ()
        for group in ('', *(f'{name}/' for name in self.groups())):
            found += [group + name
                      for name in ('schemata', 'mode', 'tasks', *counters)]
            found += [f'{group}mon_groups/{name}/{file}'
                      for name in self.groups(f'{group}mon_groups')
                      for file in ('tasks', *counters)]
        # Some clear last_cmd_status: the order counts.
        return {path: self.read(path) for path in sorted(found)}


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
        if self.kernel.files:
            what += ['choose', 'choose', 'assign']
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

    def choose(self):
        path = self.pick(self.kernel.files)
        name = path.rpartition('/')[2]
        line = 'L3' if 'L3' in self.lines else 'L3CODE'
        first, *others = self.lines.get(line, ['0'])
        every = ';'.join(f'{domain}={{0}}' for domain in (first, *others))
        if name == 'io_alloc_cbm':
            text = self.pick((f'{first}={{0}}', every, '*={0}',
                              f'*={{0}};{first}=1', '99={0}', f'{first}',
                              f'{first}=1;{first}={{0}}')).format(
                                  self.value(line))
        elif name.endswith('_config'):
            # Of all domains: those of a made-up machine may have one setting.
            text = self.pick((every, every, f'x=1;{every}', '99=1')).format(
                self.pick(('0x15', '7f', '80', '0x7F', 'x', '')))
        else:
            text = self.pick({
                'io_alloc': ('1', '1', '0', 'x'),
                'mbm_assign_mode': ('default', 'mbm_event', 'mbm_event', 'x'),
                'mbm_assign_on_mkdir': ('0', '1', 'x'),
                'event_filter': (
                    'local_reads', 'local_reads, remote_reads', '', 'x',
                    'dirty_victim_writes_all,', 'remote_reads,,x')}[name])
        return 'write', path, text + self.pick(('\n', '\n', '\n', ''))

    def assign(self):
        event = self.pick(('mbm_total_bytes', 'mbm_local_bytes', 'x'))
        domain = self.pick(('*', '*', *self.lines.get('MB', ['0']), '99', ''))
        return ('write', f'{self.group()}mbm_L3_assignments',
                f'{event}:{domain}={self.pick(("e", "_", "_", "x"))}\n')

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


def record(seed, count, monitors, files):
    """A sequence, with what it changed. Leaves no group behind."""
    kernel = Kernel(random.Random(seed))  # noqa: S311
    if files:
        kernel.files = [path for path in FILES
                        if kernel.read(path) != 'ENOENT'
                        or path.endswith('_config')]
    operations = Operations(kernel, monitors)
    before = kernel.state()
    found = {'info': {name: kernel.read(f'info/{name}') for name in INFO},
             'start': before, 'steps': []}
    for _ in range(count):
        what, path, text = operations.draw()
        answer = kernel.do(what, path, text)
        status = kernel.status()
        after = kernel.state()
        changed = {name: after.get(name) for name in before.keys() | after
                   if after.get(name) != before.get(name)}
        found['steps'].append([what, path, text, answer, status, changed])
        before = after
    return found


def inside(out, options, count, monitors, files):
    """Run as init of the kernel."""
    os.environ['PATH'] = '/usr/sbin:/usr/bin:/sbin:/bin'
    for kind, where in (('proc', '/proc'), ('sysfs', '/sys')):
        subprocess.run(['mount', '-t', kind, kind, where], check=True)
    mount = ['mount', '-t', 'resctrl', *(['-o', options] if options else []),
             'resctrl', ROOT]
    subprocess.run(mount, check=True)
    found = {'kernel': os.uname().release, 'options': options,
             **record(Path(out).name, count, monitors, files)}
    with gzip.GzipFile(out, 'wb', mtime=0) as stream:
        stream.write(json.dumps(found, sort_keys=True).encode())
    Path('/proc/sysrq-trigger').write_text('o', encoding='utf-8')


def main(argv):
    if os.getpid() == 1:
        inside(os.environ['out'], os.environ.get('options', ''),
               int(os.environ['count']), 'without' not in os.environ,
               'files' in os.environ)
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
    parser.add_argument(
        '-f', '--files', action='store_true',
        help='write to files of info/, and assign counters')
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
             *(['files=1'] if args.files else []),
             *args.arguments], check=False, stdin=subprocess.DEVNULL,
            timeout=600).returncode


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
