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

"""How commands end when nobody reads on, or when somebody ends them."""

from collections.abc import Callable
import os
import sys

#: After an interrupt, or when standard output can not be written to.
EXIT_ENDED = 1


def carry_out(name: str, work: Callable[[], int]) -> int:
    """Do the work of a command, and end without a traceback.

    All of its output is written before this returns.

    :param name: of the command, before what goes wrong.
    :param work: gives the exit status, which is 0 where whoever reads the
        output has seen enough.
    """
    try:
        status = work()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        drop_output()
        return 0
    except OSError as error:
        if not error.filename:
            drop_output()
        print(f'{name}: {error.filename or "output"}: {error.strerror}',
              file=sys.stderr)
    except KeyboardInterrupt:
        print(f'{name}: interrupted', file=sys.stderr)
    return EXIT_ENDED


def drop_output() -> None:
    """Let what is still to be written go nowhere.

    Python would try once more at its end, and complain.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
