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

"""Exit codes of all ghsched commands.

The numbers are stable. argparse exits with 2 on wrong usage.
"""

#: The command succeeded.
DONE = 0
#: The command succeeded with a negative result: something was found, was
#: refused, or still exists.
FOUND = 1
#: Wrong usage, or the command or a query failed.
COULD_NOT = 2
