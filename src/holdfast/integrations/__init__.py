"""Adapters for programs of others. Each module needs a package that Holdfast does not install."""
