"""Preset tools that need no runtime. An agent server imports these modules by default."""
