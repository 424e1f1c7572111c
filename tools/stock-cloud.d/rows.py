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

"""Print the rows of a database, one a line, as ``rows.py DATABASE PASSWORD``.

Numbers of rows, times, counts of heartbeats and generations are left out:
they change without a change of the cloud.
"""

import contextlib
import json
import sys
from typing import Any

import pymysql

#: Columns that change by themselves.
_VOLATILE = ('created_at', 'updated_at', 'generation', 'id', 'report_count',
             'last_seen_up', 'version', 'free_ram_mb', 'free_disk_gb',
             'disk_available_least', 'current_workload', 'running_vms',
             'memory_mb_used', 'local_gb_used', 'vcpus_used', 'launched_at',
             'stats')
#: Actions of users and periodic tasks are a log of what has been done.
_LOGS = ('instance_actions', 'instance_actions_events', 'task_log',
         'instance_faults')


def normalize(value: Any) -> Any:
    """Return a value of a column with sets of words in JSON in one order."""
    if isinstance(value, str) and value[:1] in '{[':
        with contextlib.suppress(ValueError):
            return normalize(json.loads(value))
    if isinstance(value, dict):
        return {key: normalize(one) for key, one in value.items()}
    if isinstance(value, list):
        values = [normalize(one) for one in value]
        words = all(isinstance(one, str) for one in values)
        return sorted(values) if words else values
    return value if isinstance(value, (int, float)) else str(value)


def main(database: str, password: str) -> int:
    """Print the rows of each table in a fixed order."""
    connection = pymysql.connect(user='stock', password=password,
                                 database=database,
                                 unix_socket='/run/mysqld/mysqld.sock')
    with connection.cursor() as cursor:
        cursor.execute('show tables')
        for (table,) in sorted(cursor.fetchall()):
            if table in _LOGS or table.startswith('shadow_'):
                continue
            cursor.execute(f'select * from `{table}`')  # noqa: S608
            names = [column[0] for column in cursor.description]
            for line in sorted(json.dumps({
                    name: normalize(value)
                    for name, value in zip(names, row, strict=True)
                    if name not in _VOLATILE}) for row in cursor.fetchall()):
                print(table, line)
    return 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
