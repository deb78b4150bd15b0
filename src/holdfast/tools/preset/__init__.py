"""Preset tools that need no runtime. Each module registers its own tools. An agent server
imports these modules by default."""
