"""Third-party suites for sandboxes, and adapters of `SandboxedRuntime` to them. They run in a
process of their own, which has the suite's packages (see `test_judges.py`)."""
