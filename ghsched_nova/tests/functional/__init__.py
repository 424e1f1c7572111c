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

# Nova's choice of a threading model has to come before every other import.
import nova.tests.functional  # noqa: F401

# Nova 32 patches the standard library here, and fails where something has
# taken a lock before.
import nova.test  # noqa: F401, H306

import gc  # noqa: E402, H306

# Nova and its libraries are half a million objects that live as long as the
# process; with Python's own threshold the collector looks through them several
# times per test, a fifth of the time of a run.
gc.set_threshold(50_000, 20, 20)
