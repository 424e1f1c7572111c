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

"""Errors of benchmarks."""


class BenchError(Exception):
    """A benchmark cannot go on; the text names the remedy."""


class ParseError(BenchError):
    """Output of a tool that is not what the tool is known to print.

    :param tool: whose output it is.
    :param problem: what is wrong with it.
    :param text: the output; its end goes into the message.
    """

    def __init__(self, tool: str, problem: str, text: str = '') -> None:
        end = ' '.join(text.split())[-200:]
        super().__init__(f'output of {tool}: {problem}'
                         + (f'; it ends with: {end}' if end else ''))
