"""Third-party benchmarks, played through the agent loop. Each runs in a process of its own,
which has the benchmark's packages (see `test_benchmarks_of_others.py`)."""
