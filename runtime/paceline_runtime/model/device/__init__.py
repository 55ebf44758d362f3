"""Between the step loop and a device that runs behind it: what a step copies there, what it replays, what comes back.

| module | subject |
|---|---|
| `buckets` | pure: for which batch sizes a step is captured, and which one a batch takes |
| `block_rows` | the rows of block tables, kept from step to step |
| `step_arrays` | pure: the numbers of one step, with padding |
| `staging` | inputs put together in page-locked memory and copied in one go |
| `graphs` | decode steps captured once and replayed |
| `readback` | results on their way to the host |
| `memory` | what a step takes of the device's memory, and what that leaves for the cache |

The one place that waits for the device is `readback`; a test holds that.
"""
