"""The index: what pip and uv see of a store.

`page` renders one page in its two forms, `publish` lets pages show a state (`settle`), `channels`
reads `ci/channels.yaml`, `serve` shows a store over local HTTP.
"""
