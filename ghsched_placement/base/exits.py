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

#: All is well, or it is done.
DONE = 0
#: The command did its work, and the answer is no: something was found, was
#: refused, or is still there.
FOUND = 1
#: Wrong usage, or something could not be done or asked.
COULD_NOT = 2
