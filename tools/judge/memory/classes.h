// Licensed under the Apache License, Version 2.0 (the "License"); you may
// not use this file except in compliance with the License. You may obtain
// a copy of the License at
//
//      http://www.apache.org/licenses/LICENSE-2.0
//
// Unless required by applicable law or agreed to in writing, software
// distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
// WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
// License for the specific language governing permissions and limitations
// under the License.

// Order the queues of a memory controller by service class.
//
// memory_build.py includes this file in DRAMsim3's controller and command queue and
// calls these functions there; ramulator2.cc has a scheduler of its own. The class of an access is in the upper bits of
// its address, which no memory decodes.

#ifndef JUDGE_CLASSES_H
#define JUDGE_CLASSES_H

#include <algorithm>
#include <cstdint>

namespace judge {

// Whether the classes hold inside the controller too, beyond its entrance.
extern bool by_class;

constexpr int kSlotShift = 40, kClassShift = 60;

inline uint64_t tag(uint64_t address, uint32_t slot, int service_class) {
    return address | (uint64_t(slot) << kSlotShift) |
           (uint64_t(service_class) << kClassShift);
}

inline uint32_t slot(uint64_t tagged) {
    return uint32_t(tagged >> kSlotShift) & 0xffff;
}

inline int service_class(uint64_t tagged) {
    return int(tagged >> kClassShift) & 7;
}

inline uint64_t address(const uint64_t& tagged) { return tagged; }

// Put the highest class first, and the oldest of a class.
template <class Queue, class Address>
void order(Queue& queue, Address address) {
    if (!by_class) return;
    std::stable_sort(queue.begin(), queue.end(),
                     [&](const auto& one, const auto& other) {
                         return service_class(address(one)) >
                                service_class(address(other));
                     });
}

// Find the ready command of the highest class of all queues. Returns false
// where all that wait are of one class, or none of a higher class is ready.
template <class Queues, class Ready, class Command>
bool urgent(const Queues& queues, size_t first, Ready ready, Command& found) {
    if (!by_class) return false;
    int lowest = 8, highest = -1;
    for (const auto& queue : queues)
        for (const auto& command : queue) {
            int its = service_class(command.hex_addr);
            lowest = std::min(lowest, its);
            highest = std::max(highest, its);
        }
    for (int now = highest; now > lowest; now--)
        for (size_t i = 0; i < queues.size(); i++) {
            size_t number = (first + i) % queues.size();
            for (const auto& command : queues[number])
                if (service_class(command.hex_addr) == now &&
                    ready(number, command, found))
                    return true;
        }
    return false;
}

}  // namespace judge

#endif
