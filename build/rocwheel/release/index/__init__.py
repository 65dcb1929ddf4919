"""The index: the view of a store for pip and uv.

`page` renders one page in its two forms, `publish` writes pages that show a state (`settle`),
`channels` reads `ci/channels.yaml`, `serve` serves a store over local HTTP.
"""
