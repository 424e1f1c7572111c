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

"""Files in which nova-compute keeps what has to outlive it."""

import os
from pathlib import Path


def replace(path: Path, text: str) -> None:
    """Write a file; who reads it meanwhile has the old one or the new one."""
    fresh = path.with_suffix('.new')
    fresh.write_text(text)
    os.replace(fresh, path)
