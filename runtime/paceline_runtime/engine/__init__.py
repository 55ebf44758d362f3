"""The engine: which tokens are computed in which step, where their keys and values lie, and the loop that does it.

Scheduler and block manager are plain arithmetic and import no torch.

| module | subject |
|---|---|
| `llm`, `startup`, `memory`, `answers`, `trace` | the whole engine: start, step, outputs |
| `scheduler` | one step: decodes, prompts, admissions; what came of it |
| `batch`, `limits`, `knobs` | a step's work and the pieces of prompts; bounds and rules; which bounds may change |
| `admission`, `arrival`, `ending`, `deadlines` | refused, made, complete, too late |
| `admitter`, `waiting`, `policy`, `tenants` | from the queue into the batch: order, shares, places |
| `preemption`, `victim`, `cushion` | who gives way, and how much room admission leaves |
| `books`, `request`, `story`, `rates` | every change of a request; what is told of it; how fast we are |
| `block_manager`, `block_pool` | a request's blocks; each block and who holds it |
| `prefix_index`, `hashing` | what can be found again, and what is let go first |
| `tiers` | host memory and disk below the cache |
"""
